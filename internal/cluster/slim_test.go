// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// A partition whose pod is to be evicted is kept, although another one of its kind is.
func TestSlimSliceKeepsNoExecute(t *testing.T) {
	v := clustertest.New(t)
	all := clustertest.Slices(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100"})
	kept := func(s *resourceapi.ResourceSlice, device string) bool {
		return slices.ContainsFunc(v.SlimSlice(s).Spec.Devices,
			func(d resourceapi.Device) bool { return d.Name == device })
	}
	tried := 0
	for _, s := range all {
		for i, d := range s.Spec.Devices {
			if kept(s, d.Name) {
				continue
			}
			tried++
			s.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{
				{Key: "x", Effect: resourceapi.DeviceTaintEffectNoExecute}}
			if !kept(s, d.Name) {
				t.Fatalf("%s has a NoExecute taint, and is left out", d.Name)
			}
			s.Spec.Devices[i].Taints = nil
		}
	}
	if tried == 0 {
		t.Error("no device is left out without a taint")
	}
}

// Of a claim for extended resources, what names its pod is kept.
func TestSlimClaimForExtendedResources(t *testing.T) {
	c := clustertest.Claim(t, `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]`)
	c.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true", "other": "x"}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}}
	slim := cluster.SlimClaim(c)
	if len(slim.Annotations) != 1 || slim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] != "true" ||
		len(slim.Status.ReservedFor) != 1 {
		t.Errorf("got annotations %v and consumers %v, want those that evictions need", slim.Annotations,
			slim.Status.ReservedFor)
	}
	c.Annotations = nil
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Conditions: []metav1.Condition{{Type: "Ready",
		Status: metav1.ConditionTrue}, {Type: gpu.IdleCondition, Status: metav1.ConditionFalse}}}}
	if slim := cluster.SlimClaim(c); slim.Status.ReservedFor != nil || slim.Status.Devices != nil {
		t.Errorf("a claim of the pod's spec: got %v, want only the allocation", slim.Status)
	}
	c.Status.Devices[0].Conditions[1].Status = metav1.ConditionTrue
	if slim := cluster.SlimClaim(c); len(slim.Status.ReservedFor) != 1 || len(slim.Status.Devices) != 1 ||
		len(slim.Status.Devices[0].Conditions) != 1 {
		t.Errorf("an idle claim: got %v, want its condition and consumer", slim.Status)
	}
}

// What users may write at length is bounded: a claim of 1.4 MB is kept with 64 KiB at most. Of a constraint that is
// dropped it stays known that there is one.
func TestSlimClaimIsBounded(t *testing.T) {
	c := clustertest.Claim(t, "")
	long := resourceapi.DeviceSubRequest{Name: "s", DeviceClassName: "gpu.nvidia.com"}
	for i := range 32 {
		long.Selectors = append(long.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprint(i, strings.Repeat("x", 1000))}})
		long.Tolerations = append(long.Tolerations, resourceapi.DeviceToleration{Key: strings.Repeat("k", 200)})
		long.DerivedAttributes = append(long.DerivedAttributes, resourceapi.DeviceDerivedAttribute{})
		c.Spec.Devices.Constraints = append(c.Spec.Devices.Constraints, resourceapi.DeviceConstraint{
			Requests: slices.Repeat([]string{strings.Repeat("r", 63)}, 32)})
	}
	for range 32 {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: "r",
			FirstAvailable: slices.Repeat([]resourceapi.DeviceSubRequest{long}, 1)})
	}
	slim := cluster.SlimClaim(c)
	before, after := c.Size(), slim.Size()
	if before < 1<<20 || after > 64<<10 || len(slim.Spec.Devices.Constraints) != 32 {
		t.Errorf("got %d bytes of %d with %d constraints, want at most 64 KiB and all", after, before,
			len(slim.Spec.Devices.Constraints))
	}
}
