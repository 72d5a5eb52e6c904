// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// figureLabels are the labels of figures: one container, one GPU.
var figureLabels = []string{"namespace", "pod", "container", "uuid", "device"}

var (
	memoryRequestedDesc = prometheus.NewDesc(prefix+"container_memory_requested_bytes",
		"Memory of the GPU that the container has by its claims: all of it for a whole GPU. Containers that share a claim have it together, and each has this figure. Admin access requests nothing.", figureLabels, nil)
	coresRequestedDesc = prometheus.NewDesc(prefix+"container_cores_requested_ratio",
		"Part of the GPU's multiprocessors that the container has by its claims: 1 for a whole GPU, 0 for a share of memory alone, which uses what others leave.", figureLabels, nil)
	memoryUsedDesc = prometheus.NewDesc(prefix+"container_memory_used_bytes",
		"Memory of the GPU that processes of the container hold, as NVML tells.", figureLabels, nil)
	utilizationDesc = prometheus.NewDesc(prefix+"container_utilization_ratio",
		"Part of the last seconds in which kernels of the container's processes ran on the GPU, as NVML tells, summed over the processes.", figureLabels, nil)
)

// The metrics of gpu-manager (github.com/tkestack/gpu-manager), with its labels and units, so that its dashboards go on.
var (
	gpuManagerLabels      = []string{"pod_name", "namespace", "node", "container_name"}
	gpuManagerUtilization = prometheus.NewDesc("container_gpu_utilization",
		"As gpu-manager has it: utilization in percent, of each GPU and in total.", append(gpuManagerLabels, "gpu"), nil)
	gpuManagerMemory = prometheus.NewDesc("container_gpu_memory_total",
		"As gpu-manager has it: memory used in MiB, of each GPU and in total.", append(gpuManagerLabels, "gpu_memory"), nil)
	gpuManagerRequestUtilization = prometheus.NewDesc("container_request_gpu_utilization",
		"As gpu-manager has it: GPUs requested, 0.1 for a tenth of one.", append(gpuManagerLabels, "req_of_gpu"), nil)
	gpuManagerRequestMemory = prometheus.NewDesc("container_request_gpu_memory",
		"As gpu-manager has it: memory requested in MiB.", append(gpuManagerLabels, "req_of_gpu_memory"), nil)
)

// Describe sends what there may be.
func (f *figures) Describe(ch chan<- *prometheus.Desc) {
	describeFigures(ch)
	if f.gpuManagerNames {
		ch <- gpuManagerUtilization
		ch <- gpuManagerMemory
		ch <- gpuManagerRequestUtilization
		ch <- gpuManagerRequestMemory
	}
}

// Collect sends the figures of now.
func (f *figures) Collect(ch chan<- prometheus.Metric) {
	all := f.current()
	collectFigures(ch, all)
	if f.gpuManagerNames {
		collectGPUManager(ch, f.node, all)
	}
}

func describeFigures(ch chan<- *prometheus.Desc) {
	ch <- memoryRequestedDesc
	ch <- coresRequestedDesc
	ch <- memoryUsedDesc
	ch <- utilizationDesc
}

func collectFigures(ch chan<- prometheus.Metric, all []figure) {
	for _, one := range all {
		send := func(desc *prometheus.Desc, value float64) {
			ch <- gauge(desc, value, one.namespace, one.pod, one.container, string(one.gpu.UUID), one.device)
		}
		if r := one.requested; r != nil {
			send(memoryRequestedDesc, float64(r.memory))
			send(coresRequestedDesc, float64(r.cores)/100)
		}
		if u := one.used; u != nil && u.memory != gpu.Unmeasured {
			send(memoryUsedDesc, float64(u.memory))
		}
		if u := one.used; u != nil && u.utilization != gpu.Unmeasured {
			send(utilizationDesc, float64(u.utilization)/100)
		}
	}
}

const mib = 1 << 20

// collectGPUManager sends the figures under the names of gpu-manager. They are sorted by container. A total of which a part is not
// known is left out.
func collectGPUManager(ch chan<- prometheus.Metric, node string, all []figure) {
	for first := 0; first < len(all); {
		end := first + 1
		for end < len(all) && sameContainer(all[first], all[end]) {
			end++
		}
		container := all[first:end]
		first = end
		send := func(desc *prometheus.Desc, value float64, of string) {
			ch <- gauge(desc, value, container[0].pod, container[0].namespace, node, container[0].container, of)
		}
		var wanted requested
		var total used
		requests := false
		for _, one := range container {
			if one.requested != nil {
				requests = true
				wanted.memory += one.requested.memory
				wanted.cores += one.requested.cores
			}
			u := one.used
			if u == nil {
				u = &used{gpu.Unmeasured, gpu.Unmeasured}
			}
			total.add(gpu.Process{Memory: u.memory, Utilization: u.utilization})
			sendUsed(send, *u, fmt.Sprintf("gpu%d", one.gpu.Index))
		}
		sendUsed(send, total, "total")
		if requests {
			send(gpuManagerRequestUtilization, float64(wanted.cores)/100, "total")
			send(gpuManagerRequestMemory, float64(wanted.memory/mib), "total")
		}
	}
}

func sendUsed(send func(*prometheus.Desc, float64, string), u used, of string) {
	if u.utilization != gpu.Unmeasured {
		send(gpuManagerUtilization, float64(u.utilization), of)
	}
	if u.memory != gpu.Unmeasured {
		send(gpuManagerMemory, float64(u.memory/mib), of)
	}
}

func sameContainer(a, b figure) bool {
	return a.namespace == b.namespace && a.pod == b.pod && a.container == b.container
}

func gauge(desc *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

// exampleFigures are the figures of a container that may have any name: see Metrics.
type exampleFigures struct{}

func (exampleFigures) Describe(ch chan<- *prometheus.Desc) { describeFigures(ch) }

func (exampleFigures) Collect(ch chan<- prometheus.Metric) {
	collectFigures(ch, []figure{{requested: &requested{}, used: &used{}}})
}
