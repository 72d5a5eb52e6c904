//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testSharedClaim uses one claim in two containers and in another pod, and checks the GPU of each.
func (s *suite) testSharedClaim(t *testing.T) {
	node := s.node(t, "l40s-x4")
	ns := s.namespace(t, "shared-claim")
	s.must(t, s.ApplyTyped(t.Context(), &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: "ours", Namespace: ns},
		Spec:       claimSpec(),
	}))
	first := s.pod(t, ns, "first", onNode(node), withClaim("ours"), withSecondContainer)
	s.running(t, first)
	device := s.allocatedDevice(t, ns, "ours")
	second := s.pod(t, ns, "second", withClaim("ours"))
	if got := s.running(t, second); got.Spec.NodeName != node {
		t.Errorf("the second pod is on %s, want %s, where the GPU is", got.Spec.NodeName, node)
	}
	want := seen([]resourceapi.Device{device})
	for _, container := range []string{"main", "again"} {
		s.waitContainerLog(t, first, container, want)
	}
	s.waitLog(t, second, want)
	if got := s.allocatedDevice(t, ns, "ours"); got.Name != device.Name {
		t.Errorf("with two pods the claim has %s, want %s", got.Name, device.Name)
	}

	// All other GPUs are free, but this one is not: neither with both pods nor with the last one.
	others := len(s.wholeGPUs(t, node)) - 1
	template := s.template(t, ns, "one-gpu")
	for n := range others {
		s.pod(t, ns, fmt.Sprintf("other-%d", n), onNode(node), withTemplate(template))
	}
	for n := range others {
		s.running(t, client.ObjectKey{Namespace: ns, Name: fmt.Sprintf("other-%d", n)})
	}
	s.must(t, s.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: first.Name, Namespace: ns}}))
	s.must(t, kube.Until(t.Context(), soon, "the first pod to be gone", func(ctx context.Context) (bool, string,
		error) {
		var pod corev1.Pod
		err := s.Get(ctx, first, &pod)
		return client.IgnoreNotFound(err) == nil && err != nil, string(pod.Status.Phase), nil
	}))
	waiting := s.pod(t, ns, "waiting", onNode(node), withTemplate(template))
	if _, err := s.WaitPod(t.Context(), soon, waiting, "unschedulable", unschedulable); err != nil {
		t.Errorf("a GPU is free although the second pod has the last one: %v", err)
	}
	s.waitLog(t, second, want)
	s.must(t, s.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: second.Name, Namespace: ns}}))
	if got := s.allocated(t, s.running(t, waiting)); got.Name != device.Name {
		t.Errorf("after the last pod: got %s, want %s", got.Name, device.Name)
	}
}

// withSecondContainer adds a second container like the first.
func withSecondContainer(p *corev1.PodSpec) {
	again := *p.Containers[0].DeepCopy()
	again.Name = "again"
	p.Containers = append(p.Containers, again)
}

func unschedulable(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

// allocatedDevice returns the only device that is allocated to a claim.
func (s *suite) allocatedDevice(t *testing.T, namespace, name string) resourceapi.Device {
	t.Helper()
	var claim resourceapi.ResourceClaim
	s.must(t, s.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &claim))
	if claim.Status.Allocation == nil || len(claim.Status.Allocation.Devices.Results) != 1 {
		t.Fatalf("claim %s: got allocation %v, want one device", name, claim.Status.Allocation)
	}
	result := claim.Status.Allocation.Devices.Results[0]
	for _, device := range s.inPool(t, result.Pool) {
		if device.Name == result.Device {
			return device
		}
	}
	t.Fatalf("claim %s: device %s/%s is not published", name, result.Pool, result.Device)
	return resourceapi.Device{}
}
