// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// usageLabels identify a container and a GPU.
var usageLabels = []string{"namespace", "pod", "container", "uuid", "device"}

var (
	memoryRequestedDesc = prometheus.NewDesc(report.Prefix+"container_memory_requested_bytes",
		"Memory of the GPU that the container has by its claims: all of it for a whole GPU. Containers that share a "+
			"claim have it together, and each has this figure. Admin access requests nothing.", usageLabels, nil)
	coresRequestedDesc = prometheus.NewDesc(report.Prefix+"container_cores_requested_ratio",
		"Part of the GPU's multiprocessors that the container has by its claims: 1 for a whole GPU, 0 for a share of "+
			"memory alone, which uses what others leave.", usageLabels, nil)
	memoryUsedDesc = prometheus.NewDesc(report.Prefix+"container_memory_used_bytes",
		"Memory of the GPU that processes of the container hold, as NVML tells.", usageLabels, nil)
	utilizationDesc = prometheus.NewDesc(report.Prefix+"container_utilization_ratio",
		"Part of the last seconds in which kernels of the container's processes ran on the GPU, as NVML tells, "+
			"summed over the processes.", usageLabels, nil)
)

// The metrics of gpu-manager (github.com/tkestack/gpu-manager), with its labels and units, for its dashboards.
var (
	gpuManagerLabels      = []string{"pod_name", "namespace", "node", "container_name"}
	gpuManagerUtilization = prometheus.NewDesc("container_gpu_utilization",
		"As gpu-manager has it: utilization in percent, of each GPU and in total.", append(gpuManagerLabels, "gpu"),
		nil)
	gpuManagerMemory = prometheus.NewDesc("container_gpu_memory_total",
		"As gpu-manager has it: memory used in MiB, of each GPU and in total.", append(gpuManagerLabels, "gpu_memory"),
		nil)
	gpuManagerRequestUtilization = prometheus.NewDesc("container_request_gpu_utilization",
		"As gpu-manager has it: GPUs requested, 0.1 for a tenth of one.", append(gpuManagerLabels, "req_of_gpu"), nil)
	gpuManagerRequestMemory = prometheus.NewDesc("container_request_gpu_memory",
		"As gpu-manager has it: memory requested in MiB.", append(gpuManagerLabels, "req_of_gpu_memory"), nil)
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- memoryRequestedDesc
	ch <- coresRequestedDesc
	ch <- memoryUsedDesc
	ch <- utilizationDesc
	c.failures.Describe(ch)
	if c.GPUManagerNames {
		ch <- gpuManagerUtilization
		ch <- gpuManagerMemory
		ch <- gpuManagerRequestUtilization
		ch <- gpuManagerRequestMemory
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	all := c.current()
	collect(ch, all)
	c.failures.Collect(ch)
	if c.GPUManagerNames {
		collectGPUManager(ch, c.Node, all)
	}
}

func collect(ch chan<- prometheus.Metric, all []usage) {
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

// collectGPUManager exports usage under the names of gpu-manager. all is sorted by container. A total with an unknown
// part is left out.
func collectGPUManager(ch chan<- prometheus.Metric, node string, all []usage) {
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
		perGPU := map[int]used{} // a container may have several partitions of one
		requests := false
		for _, one := range container {
			if one.requested != nil {
				requests = true
				wanted.memory += one.requested.memory
				wanted.cores += one.requested.cores
			}
			u := one.used
			if u == nil {
				u = &used{memory: gpu.Unmeasured, utilization: gpu.Unmeasured}
			}
			process := gpu.Process{Memory: u.memory, Utilization: u.utilization}
			total.add(process)
			sum := perGPU[one.gpu.Index]
			sum.add(process)
			perGPU[one.gpu.Index] = sum
		}
		for index, u := range perGPU {
			sendUsed(send, u, fmt.Sprintf("gpu%d", index))
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

func sameContainer(a, b usage) bool {
	return a.namespace == b.namespace && a.pod == b.pod && a.container == b.container
}

func gauge(desc *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}
