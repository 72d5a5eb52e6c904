//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testRequests uses one claim with two requests in three containers: one for each request and one for the whole claim.
func (s *suite) testRequests(t *testing.T) {
	node := s.node(t, "mixed")
	ns := s.namespace(t, "requests")
	template := s.claimTemplate(t, ns, "two", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{gpus("a",
		1), gpus("b", 1)}})
	pod := s.pod(t, ns, "worker", onNode(node), withTemplate(template), func(p *corev1.PodSpec) {
		one := p.Containers[0]
		p.Containers = nil
		for container, request := range map[string]string{"only-a": "a", "only-b": "b", "both": ""} {
			c := *one.DeepCopy()
			c.Name, c.Resources.Claims[0].Request = container, request
			p.Containers = append(p.Containers, c)
		}
	})
	devices := map[string]resourceapi.Device{}
	for _, d := range s.gpus(t, node) {
		devices[d.Name] = d
	}
	names := s.names(t, s.running(t, pod))
	a, b := devices[names[0]], devices[names[1]]
	for container, want := range map[string][]resourceapi.Device{"only-a": {a}, "only-b": {b}, "both": {a, b}} {
		s.waitContainerLog(t, pod, container, seen(want))
	}
}

// testTaint taints a GPU, as an administrator does for maintenance.
func (s *suite) testTaint(t *testing.T) {
	s.needs(t, "DRADeviceTaintRules")
	node := s.node(t, "workstation")
	ns := s.namespace(t, "taint")
	device := s.gpus(t, node)[0]
	rule := &resourceapi.DeviceTaintRule{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceTaintRule"},
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: driver, Pool: &node, Device: &device.Name},
			Taint: resourceapi.DeviceTaint{Key: "example.com/maintenance",
				Effect: resourceapi.DeviceTaintEffectNoSchedule},
		},
	}
	t.Cleanup(func() { s.must(t, client.IgnoreNotFound(s.Delete(context.WithoutCancel(t.Context()), rule))) })
	// The scheduler receives rules and pods through different watches. While the holder has the GPU, the rule has time
	// to arrive.
	holder := s.pod(t, ns, "holder", withTemplate(s.claimTemplate(t, ns, "holder", theGPU(device))))
	s.running(t, holder)
	refused := s.pod(t, ns, "refused", withTemplate(s.claimTemplate(t, ns, "refused", theGPU(device))))
	s.waitUnschedulable(t, refused)
	s.must(t, s.ApplyTyped(t.Context(), rule))
	s.deletePod(t, holder)
	tolerates := resourceapi.DeviceToleration{Key: "example.com/maintenance",
		Operator: resourceapi.DeviceTolerationOpExists}
	tolerated := s.pod(t, ns, "tolerated", withTemplate(s.claimTemplate(t, ns, "tolerated", theGPU(device, tolerates))))
	if got := s.allocated(t, s.running(t, tolerated)); got.Name != device.Name {
		t.Errorf("got %s, want %s", got.Name, device.Name)
	}
	s.deletePod(t, tolerated)
	again := s.pod(t, ns, "again", withTemplate("refused")) // free, and still refused
	s.waitUnschedulable(t, again)
	s.deletePod(t, again)
	s.must(t, s.Delete(t.Context(), rule))
	s.running(t, refused)
}

// testQuota uses up a namespace's quota with claims and with nvidia.com/gpu. The class of the strongest GPU has its own
// quota.
func (s *suite) testQuota(t *testing.T) {
	s.needs(t, "DRAExtendedResource")
	ns := s.namespace(t, "quota")
	const name = "requests.nvidia.com/gpu"
	strongest := corev1.ResourceName(strongestClass() + ".deviceclass.resource.k8s.io/devices")
	s.must(t, s.ApplyTyped(t.Context(), &corev1.ResourceQuota{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"},
		ObjectMeta: metav1.ObjectMeta{Name: "gpus", Namespace: ns},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{name: resource.MustParse("4"),
			strongest: resource.MustParse("1")}},
	}))
	used := func(name corev1.ResourceName, want int64) {
		t.Helper()
		s.must(t, kube.Until(t.Context(), soon, fmt.Sprintf("%d of %s to be used", want, name),
			func(ctx context.Context) (bool, string, error) {
				var quota corev1.ResourceQuota
				err := s.Get(ctx, client.ObjectKey{Namespace: ns, Name: "gpus"}, &quota)
				got, ok := quota.Status.Used[name]
				return ok && got.Value() == want, got.String(), err
			}))
	}
	used(name, 0)
	// A prioritized list counts as its largest alternative, here two, whichever is allocated.
	list := s.claimTemplate(t, ns, "list", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu",
		FirstAvailable: []resourceapi.DeviceSubRequest{
			{Name: "one", DeviceClassName: *driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount,
				Count: 1},
			{Name: "two", DeviceClassName: *driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount,
				Count: 2},
		}}}})
	s.running(t, s.pod(t, ns, "list", withTemplate(list)))
	used(name, 2)
	limit := func(p *corev1.PodSpec) {
		p.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	}
	plain := s.pod(t, ns, "plain", limit)
	s.running(t, plain)
	used(name, 3)
	// An unsatisfiable claim counts too.
	impossible := s.claimTemplate(t, ns, "impossible", theGPU(resourceapi.Device{}))
	s.waitUnschedulable(t, s.pod(t, ns, "impossible", withTemplate(impossible)))
	used(name, 4)
	// Over the quota, a pod with nvidia.com/gpu is rejected; a pod with a template exists, but not its claim.
	err := s.ApplyTyped(t.Context(), &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "too-much", Namespace: ns},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: s.image,
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(
				"1")}}}}},
	})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") {
		t.Errorf("a pod with nvidia.com/gpu over the quota: got error %v", err)
	}
	// The strongest GPU counts as one, regardless of the number of ranks.
	s.must(t, s.Create(t.Context(), &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "strongest",
		Namespace: ns}, Spec: resourceapi.ResourceClaimSpec{Devices: strongestClaim()}}))
	used(strongest, 1)
	used(name, 4)
	err = s.Create(t.Context(), &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "another",
		Namespace: ns}, Spec: resourceapi.ResourceClaimSpec{Devices: strongestClaim()}})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") {
		t.Errorf("a claim for the strongest GPU over its quota: got error %v", err)
	}
	waiting := s.pod(t, ns, "waiting", withTemplate(s.template(t, ns, "one-gpu")))
	s.waitRefused(t, waiting, []string{"FailedResourceClaimCreation", "exceeded quota: gpus"})
	s.must(t, s.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: plain.Name, Namespace: ns}}))
	s.running(t, waiting)
	used(name, 4)
}
