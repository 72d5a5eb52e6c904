//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testContainerMetrics runs containers with a whole GPU, with one of two, and with shares that they use. It checks
// their metrics at the node's plugin, until they are gone.
func (s *suite) testContainerMetrics(t *testing.T) {
	s.needs(t, sharesOfMIG...)
	const model = "NVIDIA H100 80GB HBM3"
	node := s.node(t, "dgx-h100")
	ns := s.namespace(t, "metrics")
	some := s.allocating(t, ns, "some", "4Gi", onNode(node),
		withTemplate(s.templateFor(t, ns, "some", share("gpu", model, "5Gi", "30"))))
	more := s.allocating(t, ns, "more", "1Gi", onNode(node),
		withTemplate(s.templateFor(t, ns, "more", share("gpu", model, "6Gi", ""))))
	whole := s.running(t, s.pod(t, ns, "whole", onNode(node), withTemplate(s.template(t, ns, "one-gpu")),
		withSecondContainer))
	named, devices := s.oneRequestEach(t, ns, node)

	gpu := s.allocated(t, whole)
	capacity := gpu.Capacity["memory"].Value
	all := containerUsage{memory: float64(capacity.Value()), cores: 1}
	want := append(all.lines(whole, "main", gpu), all.lines(whole, "again", gpu)...)
	for container, device := range devices {
		want = append(want, all.lines(named, container, device)...)
	}
	// In the simulation, each process uses all multiprocessors that it may and that earlier processes leave.
	card := s.allocated(t, more)
	want = append(want, containerUsage{5 << 30, .3, 4 << 30, .3}.lines(some, "main", card)...)
	want = append(want, containerUsage{6 << 30, 0, 1 << 30, .7}.lines(more, "main", card)...)
	s.waitContainerMetrics(t, node, ns, want)

	for _, pod := range []*corev1.Pod{whole, named, some} {
		s.must(t, s.Delete(t.Context(), pod))
	}
	s.waitContainerMetrics(t, node, ns, containerUsage{6 << 30, 0, 1 << 30, 1}.lines(more, "main", card))
}

// allocating creates a pod that allocates memory of its GPU.
func (s *suite) allocating(t *testing.T, namespace, name, memory string, options ...podOption) *corev1.Pod {
	t.Helper()
	key := s.pod(t, namespace, name, append(options, withArgs("alloc", memory, "--stay"))...)
	pod := s.running(t, key)
	s.must(t, kube.Until(t.Context(), soon, name+" to have its memory", func(ctx context.Context) (bool, string,
		error) {
		got, err := s.Log(ctx, key)
		return strings.HasPrefix(got, "granted"), got, err
	}))
	return pod
}

// oneRequestEach runs a pod with a claim for two GPUs, one for each container, and returns the GPU of each container.
func (s *suite) oneRequestEach(t *testing.T, namespace, node string) (*corev1.Pod, map[string]resourceapi.Device) {
	t.Helper()
	template := s.claimTemplate(t, namespace, "two",
		resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{gpus("main", 1), gpus("again", 1)}})
	pod := s.running(t, s.pod(t, namespace, "named", onNode(node), withTemplate(template), withSecondContainer,
		func(p *corev1.PodSpec) {
			for i := range p.Containers {
				p.Containers[i].Resources.Claims = []corev1.ResourceClaim{{Name: p.ResourceClaims[0].Name,
					Request: p.Containers[i].Name}}
			}
		}))
	devices := map[string]resourceapi.Device{}
	for _, result := range s.claimOf(t, pod).Status.Allocation.Devices.Results {
		for _, device := range s.gpus(t, node) {
			if device.Name == result.Device {
				devices[result.Request] = device
			}
		}
	}
	return pod, devices
}

// containerUsage is what a container has requested of a GPU and uses of it: bytes, and fractions of 1.
type containerUsage struct{ memory, cores, memoryUsed, utilization float64 }

func (f containerUsage) lines(pod *corev1.Pod, container string, device resourceapi.Device) []string {
	labels := fmt.Sprintf("{container=%q,device=%q,namespace=%q,pod=%q,uuid=%q}", container, device.Name, pod.Namespace,
		pod.Name, stringAttribute(device, "uuid"))
	var lines []string
	for name, value := range map[string]float64{
		"memory_requested_bytes": f.memory, "cores_requested_ratio": f.cores, "memory_used_bytes": f.memoryUsed,
		"utilization_ratio": f.utilization,
	} {
		lines = append(lines, "gpu_dra_container_"+name+labels+" "+strconv.FormatFloat(value, 'g', -1, 64))
	}
	return lines
}

// waitContainerMetrics waits until the plugin of the node reports exactly these metrics for the containers of the
// namespace.
func (s *suite) waitContainerMetrics(t *testing.T, node, namespace string, want []string) {
	t.Helper()
	slices.Sort(want)
	plugin := client.ObjectKeyFromObject(s.plugin(t, node))
	what := "the metrics\n" + strings.Join(want, "\n") + "\n"
	s.must(t, kube.Until(t.Context(), soon, what, func(ctx context.Context) (bool, string, error) {
		body, err := s.HTTP(ctx, plugin, httpPort, "/metrics")
		var got []string
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, "gpu_dra_container_") &&
				strings.Contains(line, fmt.Sprintf("namespace=%q", namespace)) {
				got = append(got, strings.TrimSuffix(line, "\n"))
			}
		}
		slices.Sort(got)
		return slices.Equal(got, want), strings.Join(got, "\n"), err
	}))
}
