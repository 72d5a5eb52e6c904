// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const driver = "gpu.nvidia.com"

// added is when all taints of these tests were added.
var added = time.Date(2026, 11, 25, 8, 0, 0, 0, time.UTC)

func noExecute(key string) resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: key, Effect: resourceapi.DeviceTaintEffectNoExecute,
		TimeAdded: ptr.To(metav1.NewTime(added))}
}

// slice returns a slice of node-1 with two GPUs, the first with these taints.
func slice(generation int64, taints ...resourceapi.DeviceTaint) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("slice-", generation)},
		Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: ptr.To("node-1"),
			Pool:    resourceapi.ResourcePool{Name: "node-1", Generation: generation, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "gpu-0", Taints: taints}, {Name: "gpu-1"}}}}
}

func rule(name string, t resourceapi.DeviceTaint, device string) *resourceapi.DeviceTaintRule {
	selector := &resourceapi.DeviceTaintSelector{Driver: ptr.To(driver), Pool: ptr.To("node-1"), Device: &device}
	return &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.DeviceTaintRuleSpec{DeviceSelector: selector, Taint: t}}
}

// extendedClaim returns what the scheduler makes for a pod with nvidia.com/gpu: 1.
func extendedClaim() *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train-extended-resources-x", UID: "claim",
			CreationTimestamp: metav1.NewTime(added.Add(-time.Hour)),
			Annotations:       map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}},
		Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "train", UID: "pod"}},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "container-0-request-0", Driver: driver,
					Pool: "node-1", Device: "gpu-0"}}}},
		}}
}

func TestDecide(t *testing.T) {
	tolerates := func(all ...resourceapi.DeviceToleration) func(*resourceapi.ResourceClaim) {
		return func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Tolerations = all }
	}
	exists := func(seconds *int64) resourceapi.DeviceToleration {
		return resourceapi.DeviceToleration{Operator: resourceapi.DeviceTolerationOpExists,
			Effect: resourceapi.DeviceTaintEffectNoExecute, TolerationSeconds: seconds}
	}
	type (
		published = []*resourceapi.ResourceSlice
		rules     = []*resourceapi.DeviceTaintRule
	)
	const xid = "node-1/gpu-0 has the taint xid:NoExecute"
	for _, row := range []struct {
		name      string
		change    func(*resourceapi.ResourceClaim)
		published published
		rules     rules
		want      string // when after the taint was added, and why; empty: the pod stays
	}{
		{"no taint", nil, published{slice(1)}, nil, ""},
		{"taint of the slice", nil, published{slice(1, noExecute("xid"))}, nil, "0s " + xid},
		{"value of the taint", nil, published{slice(1, resourceapi.DeviceTaint{Key: "xid", Value: "79",
			Effect: "NoExecute", TimeAdded: ptr.To(metav1.NewTime(added))})}, nil,
			"0s node-1/gpu-0 has the taint xid=79:NoExecute"},
		{"taint of another effect", nil, published{slice(1, resourceapi.DeviceTaint{Key: "xid",
			Effect: resourceapi.DeviceTaintEffectNoSchedule})}, nil, ""},
		{"taint of an obsolete slice", nil, published{slice(1, noExecute("xid")), slice(2)}, nil, ""},
		{"taint of the rule", nil, published{slice(1)}, rules{rule("drain", noExecute("x"), "gpu-0")},
			"0s node-1/gpu-0 has the taint x:NoExecute by DeviceTaintRule drain"},
		{"rule for a device that is not published", nil, nil, rules{rule("drain", noExecute("x"), "gpu-0")},
			"0s node-1/gpu-0 has the taint x:NoExecute by DeviceTaintRule drain"},
		{"rule for another device", nil, published{slice(1)}, rules{rule("drain", noExecute("x"), "gpu-1")}, ""},
		{"rule without a selector", nil, published{slice(1)}, rules{{Spec: resourceapi.DeviceTaintRuleSpec{
			Taint: noExecute("x")}}}, ""},
		{"slice and rule", nil, published{slice(1, noExecute("xid"))}, rules{rule("drain", noExecute("x"), "gpu-0")},
			"0s node-1/gpu-0 has the taint x:NoExecute by DeviceTaintRule drain; " + xid},
		{"tolerated for ever", tolerates(exists(nil)), published{slice(1, noExecute("xid"))}, nil, ""},
		{"tolerated for a minute", tolerates(exists(ptr.To(int64(60)))), published{slice(1, noExecute("xid"))}, nil,
			"1m0s " + xid},
		{"tolerated for the shortest of several times",
			tolerates(exists(ptr.To(int64(60))), exists(ptr.To(int64(30)))), published{slice(1, noExecute("xid"))}, nil,
			"30s " + xid},
		{"tolerated for a time and for ever", tolerates(exists(ptr.To(int64(60))), exists(nil)),
			published{slice(1, noExecute("xid"))}, nil, ""},
		{"tolerated for less than no time", tolerates(exists(ptr.To(int64(-5)))), published{slice(1, noExecute("xid"))},
			nil, "0s " + xid},
		{"tolerated for a thousand years", tolerates(exists(ptr.To(int64(1000 * 365 * 24 * 3600)))),
			published{slice(1, noExecute("xid"))}, nil, ""},
		{"toleration without an effect does not count, as for Kubernetes", tolerates(resourceapi.DeviceToleration{
			Operator: resourceapi.DeviceTolerationOpExists}), published{slice(1, noExecute("xid"))}, nil, "0s " + xid},
		{"another taint is tolerated", tolerates(resourceapi.DeviceToleration{Key: "other",
			Operator: resourceapi.DeviceTolerationOpExists, Effect: resourceapi.DeviceTaintEffectNoExecute}),
			published{slice(1, noExecute("xid"))}, nil, "0s " + xid},
		{"one of two taints is tolerated", tolerates(resourceapi.DeviceToleration{Key: "xid",
			Operator: resourceapi.DeviceTolerationOpExists, Effect: resourceapi.DeviceTaintEffectNoExecute}),
			published{slice(1, noExecute("xid"), noExecute("ecc"))}, nil,
			"0s node-1/gpu-0 has the taint ecc:NoExecute"},
		{"a claim of the pod's spec is for Kubernetes", func(c *resourceapi.ResourceClaim) { c.Annotations = nil },
			published{slice(1, noExecute("xid"))}, nil, ""},
		{"no devices yet", func(c *resourceapi.ResourceClaim) { c.Status.Allocation = nil },
			published{slice(1, noExecute("xid"))}, nil, ""},
		{"the pod has ended", func(c *resourceapi.ResourceClaim) { c.Status.ReservedFor = nil },
			published{slice(1, noExecute("xid"))}, nil, ""},
		{"a device of another driver", func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].Driver = "nic.example.com"
		}, nil, rules{{Spec: resourceapi.DeviceTaintRuleSpec{DeviceSelector: &resourceapi.DeviceTaintSelector{},
			Taint: noExecute("x")}}}, ""},
		{"the healthy GPU of the node", func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].Device = "gpu-1"
		}, published{slice(1, noExecute("xid"))}, nil, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			claim := extendedClaim()
			if row.change != nil {
				row.change(claim)
			}
			e, ok := decide(driver, claim, row.published, row.rules)
			got := ""
			if ok {
				got = fmt.Sprintf("%s %s", e.at.Sub(added), strings.Join(e.why, "; "))
				if e.pod.String() != "ml/train" || e.uid != "pod" {
					t.Errorf("got pod %s with UID %s, want that of the claim", e.pod, e.uid)
				}
			}
			if got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}
