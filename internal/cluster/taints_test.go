// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// rule returns a DeviceTaintRule for a device of a pool; empty: for any.
func rule(name, pool, device string, effect resourceapi.DeviceTaintEffect) *resourceapi.DeviceTaintRule {
	r := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name}}
	r.Spec.Taint = resourceapi.DeviceTaint{Key: "cordon", Effect: effect}
	r.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Driver: ptr.To(clustertest.Driver)}
	if pool != "" {
		r.Spec.DeviceSelector.Pool = &pool
	}
	if device != "" {
		r.Spec.DeviceSelector.Device = &device
	}
	return r
}

// A DeviceTaintRule taints GPUs as the plugin does: in the metrics, and for the ranking.
func TestTaintRules(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "b",
		Profile: "t4-x2"})
	const noSchedule, none = resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNone
	var kind *cluster.DeviceKind
	for _, k := range v.Kinds() {
		if k.Type() == "gpu" {
			kind = k
		}
	}
	other := rule("other", "a", "gpu-3b-00-0", noSchedule)
	other.Spec.DeviceSelector.Driver = ptr.To("gpu.example.com")
	unselective := rule("unselective", "", "", noSchedule)
	unselective.Spec.DeviceSelector = nil
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"a rule without an effect", func() { v.SetTaintRule(rule("one", "a", "gpu-3b-00-0", none)) }, ""},
		{"the rule has one", func() { v.SetTaintRule(rule("one", "a", "gpu-3b-00-0", noSchedule)) }, "a/gpu-3b-00-0"},
		{"a rule of another driver, and one that selects nothing", func() {
			v.SetTaintRule(other)
			v.SetTaintRule(unselective)
		}, "a/gpu-3b-00-0"},
		{"a second rule for a whole node", func() { v.SetTaintRule(rule("two", "b", "", noSchedule)) },
			"a/gpu-3b-00-0 b/gpu-3b-00-0 b/gpu-af-00-0"},
		{"the slices of the node are published again", func() {
			for _, s := range clustertest.Slices(t, clustertest.SimNode{Name: "b", Profile: "t4-x2"}) {
				v.SetSlice(v.SlimSlice(s))
			}
		}, "a/gpu-3b-00-0 b/gpu-3b-00-0 b/gpu-af-00-0"},
		{"the first rule selects another device",
			func() { v.SetTaintRule(rule("one", "a", "gpu-af-00-0", noSchedule)) },
			"a/gpu-af-00-0 b/gpu-3b-00-0 b/gpu-af-00-0"},
		{"the second rule is deleted", func() { v.DeleteTaintRule("two") }, "a/gpu-af-00-0"},
		{"a rule for all", func() { v.SetTaintRule(rule("all", "", "", noSchedule)) },
			"a/gpu-3b-00-0 a/gpu-af-00-0 b/gpu-3b-00-0 b/gpu-af-00-0"},
		{"the rule for all has no effect any more", func() { v.SetTaintRule(rule("all", "", "", none)) },
			"a/gpu-af-00-0"},
		{"a rule that is not there is deleted", func() { v.DeleteTaintRule("never") }, "a/gpu-af-00-0"},
	} {
		step.do()
		var tainted []string
		for g := range v.GPUs {
			if !g.Admits(nil) {
				tainted = append(tainted, g.Node+"/"+g.Name)
			}
		}
		slices.Sort(tainted)
		got := fmt.Sprintf("%s, %d available", strings.Join(tainted, " "), v.Available(kind, asks(nil, nil, 1), 100))
		want := fmt.Sprintf("%s, %d available", step.want, 4-len(strings.Fields(step.want)))
		if got != want {
			t.Errorf("%s: got %s, want %s", step.name, got, want)
		}
	}
}

// TestKept: a GPU is kept if nothing but reservations and preemptions keeps new pods away.
func TestKept(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	reserve := rule("reserve", "a", "", resourceapi.DeviceTaintEffectNoSchedule)
	reserve.Spec.Taint.Key, reserve.Spec.Taint.Value = cluster.ReservedTaint, "vision"
	v.SetTaintRule(reserve)
	v.SetTaintRule(rule("cordon", "a", "gpu-af-00-0", resourceapi.DeviceTaintEffectNoSchedule))
	v.SetTaintRule(rule("note", "a", "gpu-3b-00-0", resourceapi.DeviceTaintEffectNone))
	state := func() string {
		var all []string
		for g := range v.GPUs {
			all = append(all, fmt.Sprintf("%s tainted=%t kept=%t", g.Name, !g.Admits(nil), g.Kept()))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	for range 20 { // whichever of the rules comes first
		v.SetTaintRule(reserve)
		const want = "gpu-3b-00-0 tainted=true kept=true, gpu-af-00-0 tainted=true kept=false"
		if got := state(); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	v.DeleteTaintRule("reserve")
	if got, want := state(), "gpu-3b-00-0 tainted=false kept=false, gpu-af-00-0 tainted=true kept=false"; got != want {
		t.Errorf("when the reservation has ended: got %s, want %s", got, want)
	}
	hold := rule("hold", "a", "gpu-3b-00-0", resourceapi.DeviceTaintEffectNoSchedule)
	hold.Spec.Taint.Key = cluster.PreemptionTaint
	v.SetTaintRule(hold)
	if got, want := state(), "gpu-3b-00-0 tainted=true kept=true, gpu-af-00-0 tainted=true kept=false"; got != want {
		t.Errorf("held for a preemption: got %s, want %s", got, want)
	}
}

// A count that no claim can get does not disturb the ranking of others: the sum of two such overflows.
func TestWaitingForHugeCounts(t *testing.T) {
	v := cluster.New(clustertest.Driver)
	for _, name := range []string{"a", "b", "c"} {
		c := clustertest.Claim(t, "requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: "+
			"4611686018427387904}}]")
		c.Name, c.CreationTimestamp = name, metav1.Now()
		v.SetClaim(cluster.SlimClaim(c))
	}
	if got := v.Waiting("gpu.nvidia.com", time.Now().Add(-time.Minute)); got != 3*32 {
		t.Errorf("got %d, want 96", got)
	}
}
