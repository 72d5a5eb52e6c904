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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testContainerMetrics has containers with a whole GPU, with fractions of one, and with none of their own, and looks at what the
// plugin of their node tells about them, until they are gone.
func (s *suite) testContainerMetrics(t *testing.T) {
	node := s.node(t, "l40s-x4")
	ns := s.namespace(t, "metrics")
	whole := s.running(t, s.pod(t, ns, "whole", onNode(node), withTemplate(s.template(t, ns, "one-gpu")), twice))
	some := s.running(t, s.pod(t, ns, "some", onNode(node), withTemplate(s.fraction(t, ns, "some", "5Gi", "30"))))
	more := s.running(t, s.pod(t, ns, "more", onNode(node), withTemplate(s.fraction(t, ns, "more", "6Gi", ""))))

	gpu := s.allocated(t, whole)
	memory := gpu.Capacity["memory"].Value
	all := float64(memory.Value())
	var want []string
	want = append(want, containerMetrics(whole, "again", gpu, all, 1)...)
	want = append(want, containerMetrics(whole, "main", gpu, all, 1)...)
	want = append(want, containerMetrics(some, "main", s.allocated(t, some), 5<<30, .3)...)
	want = append(want, containerMetrics(more, "main", s.allocated(t, more), 6<<30, 0)...)
	s.waitContainerMetrics(t, node, ns, want)

	for _, pod := range []*corev1.Pod{whole, some} {
		s.must(t, s.Delete(t.Context(), pod))
	}
	s.waitContainerMetrics(t, node, ns, containerMetrics(more, "main", s.allocated(t, more), 6<<30, 0))
}

// fraction makes a ResourceClaimTemplate for a part of a GPU that nothing enforces, and returns its name.
func (s *suite) fraction(t *testing.T, namespace, name, memory, cores string) string {
	t.Helper()
	spec := claimSpec(opaque(*driver, `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}`))
	requests := map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}
	if cores != "" {
		requests["cores"] = resource.MustParse(cores)
	}
	spec.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: requests}
	s.must(t, s.ApplyTyped(t.Context(), &resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: spec},
	}))
	return name
}

// containerMetrics are the series of a container that has that much of a GPU and uses nothing of it.
func containerMetrics(pod *corev1.Pod, container string, device resourceapi.Device, memory, cores float64) []string {
	labels := fmt.Sprintf("{container=%q,device=%q,namespace=%q,pod=%q,uuid=%q}", container, device.Name, pod.Namespace, pod.Name, stringAttribute(device, "uuid"))
	var lines []string
	for name, value := range map[string]float64{"memory_requested_bytes": memory, "cores_requested_ratio": cores, "memory_used_bytes": 0, "utilization_ratio": 0} {
		lines = append(lines, "gpu_dra_container_"+name+labels+" "+strconv.FormatFloat(value, 'g', -1, 64))
	}
	return lines
}

// waitContainerMetrics waits until the plugin of the node tells just this about the containers of the namespace.
func (s *suite) waitContainerMetrics(t *testing.T, node, namespace string, want []string) {
	t.Helper()
	slices.Sort(want)
	plugin := client.ObjectKeyFromObject(s.plugin(t, node))
	what := "the metrics\n" + strings.Join(want, "\n") + "\n"
	s.must(t, kube.Until(t.Context(), soon, what, func(ctx context.Context) (bool, string, error) {
		body, err := s.HTTP(ctx, plugin, httpPort, "/metrics")
		var got []string
		for line := range strings.Lines(body) {
			if strings.Contains(line, fmt.Sprintf("namespace=%q", namespace)) {
				got = append(got, strings.TrimSuffix(line, "\n"))
			}
		}
		slices.Sort(got)
		return slices.Equal(got, want), strings.Join(got, "\n"), err
	}))
}
