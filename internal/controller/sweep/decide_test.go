// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/controller/view"
	"github.com/gpudra/gpu-dra-driver/internal/controller/viewtest"
)

const (
	ours   = "gpu.nvidia.com"
	theirs = "nic.example.com"
	grace  = 5 * time.Minute
)

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// slice returns a slice of a node, in the pool of that name. owner is the UID of a node; "": none.
func slice(name, driver, node string, owner types.UID,
	change ...func(*resourceapi.ResourceSlice)) resourceapi.ResourceSlice {
	s := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name),
		ResourceVersion: "1"},
		Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node},
			Devices: []resourceapi.Device{{Name: "gpu-3b-00-0",
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{pluginAttribute: {}}}}}}
	if owner != "" {
		s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: owner}}
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

// claim returns a claim in the namespace ml with a device of each driver on the node w1.
func claim(name string, drivers []string, change ...func(*resourceapi.ResourceClaim)) resourceapi.ResourceClaim {
	c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name,
		UID: types.UID("uid-" + name), ResourceVersion: "1"}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range drivers {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: d, Pool: "w1", Device: "d"})
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

// madeFor makes the claim one that was created from a template for a pod.
func madeFor(pod string, uid types.UID) func(*resourceapi.ResourceClaim) {
	return func(c *resourceapi.ResourceClaim) {
		yes := true
		c.OwnerReferences = append(c.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod,
			UID: uid, Controller: &yes})
	}
}

func reservedFor(pod string, uid types.UID) func(*resourceapi.ResourceClaim) {
	return func(c *resourceapi.ResourceClaim) {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods",
			Name: pod, UID: uid})
	}
}

func deleted(c *resourceapi.ResourceClaim) {
	now := metav1.NewTime(start)
	c.DeletionTimestamp, c.Finalizers = &now, []string{"example.com/hold"}
}

// snapshot has the node w1 with the plugin, w2 without it, w3 without it and not ready, and a pod that is gone.
func snapshot(change func(*Snapshot)) Snapshot {
	w := Snapshot{Driver: ours,
		Nodes:    map[string]Node{"w1": {UID: "n1", Ready: true}, "w2": {UID: "n2", Ready: true}, "w3": {UID: "n3"}},
		Plugins:  map[string]bool{"w1": true},
		Returned: map[types.UID]bool{}, Holders: map[string]string{}, Gone: map[types.UID]bool{"dead": true}}
	if change != nil {
		change(&w)
	}
	return w
}

func withSlices(s ...resourceapi.ResourceSlice) func(*Snapshot) {
	return func(w *Snapshot) { w.Slices = s }
}

func withClaims(c ...resourceapi.ResourceClaim) func(*Snapshot) {
	return func(w *Snapshot) {
		w.Claims = c
		holders(ours, c, w.Holders)
	}
}

// format prints the findings, one per line.
func format(found []Finding) string {
	var b strings.Builder
	for _, f := range found {
		does := "stays"
		if f.Remove {
			does = "goes"
		}
		fmt.Fprintf(&b, "%s %s %s, %s\n", f.Event.Reason, f.Object.Name, does, f.Why)
	}
	return b.String()
}

func TestDecide(t *testing.T) {
	one := []string{ours}
	for _, tc := range []struct {
		name     string
		snapshot func(*Snapshot)
		want     string
	}{
		{"a node and its plugin are there", withSlices(slice("s", ours, "w1", "n1")), ""},
		{"a node is gone", withSlices(slice("s", ours, "w9", "n9")), "NodeGone s goes, its node w9 is gone\n"},
		{"a node was made again and has another UID", withSlices(slice("s", ours, "w1", "n0")),
			"NodeGone s goes, its node was replaced by another one with the name w1\n"},
		{"the slice of another driver survives its node", withSlices(slice("s", theirs, "w9", "n9")), ""},
		{"the slice of another driver survives the plugin", withSlices(slice("s", theirs, "w2", "n2")), ""},
		{"a slice without an owner is only reported", withSlices(slice("s", ours, "w9", "")),
			"NodeGone s stays, its node w9 is gone: left alone: it belongs to no node alone (ownerReferences)\n"},
		{"a slice with two owners is only reported",
			withSlices(slice("s", ours, "w9", "n9", func(s *resourceapi.ResourceSlice) {
				s.OwnerReferences = append(s.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap",
					Name: "c", UID: "c"})
			})), "NodeGone s stays, its node w9 is gone: left alone: it belongs to no node alone (ownerReferences)\n"},
		{"a slice whose owner is another node that is there is only reported", withSlices(slice("s", ours, "w9", "n1")),
			"NodeGone s stays, its node w9 is gone: left alone: it belongs to another node that is there " +
				"(ownerReferences)\n"},
		{"a slice for several nodes is nobody's of ours",
			withSlices(slice("s", ours, "", "n9", func(s *resourceapi.ResourceSlice) { s.Spec.NodeName = nil })), ""},
		{"a slice that a finalizer keeps is only reported",
			withSlices(slice("s", ours, "w9", "n9", func(s *resourceapi.ResourceSlice) {
				now := metav1.NewTime(start)
				s.DeletionTimestamp, s.Finalizers = &now, []string{"example.com/hold"}
			})), "DeletionStuck s stays, its node w9 is gone; it is deleted, and waits for example.com/hold\n"},
		{"a node has lost its plugin", withSlices(slice("s", ours, "w2", "n2")),
			"PluginGone s goes, node w2 has no pod of the plugin\n"},
		{"a slice with the counters of lost devices goes with them", withSlices(slice("s", ours, "w2", "n2"),
			slice("t", ours, "w2", "n2", func(s *resourceapi.ResourceSlice) { s.Spec.Devices = nil })),
			"PluginGone s goes, node w2 has no pod of the plugin\nPluginGone t goes, node w2 has no pod of the " +
				"plugin\n"},
		{"the slice of a driver with the same name survives", withSlices(slice("s", ours, "w2", "n2",
			func(s *resourceapi.ResourceSlice) { s.Spec.Devices = []resourceapi.Device{{Name: "gpu-0"}} })), ""},
		{"a node has lost its plugin and a claim has a device of it", func(w *Snapshot) {
			withClaims(claim("train", one,
				func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Pool = "w2" }))(w)
			withSlices(slice("s", ours, "w2", "n2"))(w)
		}, "PluginGone s stays, node w2 has no pod of the plugin: left alone: claim ml/train has a device of the " +
			"node, and schedulers forget what is not published\n"},
		{"a node has lost its plugin and a claim has a device of another driver there", func(w *Snapshot) {
			withClaims(claim("train", []string{theirs},
				func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Pool = "w2" }))(w)
			withSlices(slice("s", ours, "w2", "n2"))(w)
		}, "PluginGone s goes, node w2 has no pod of the plugin\n"},
		{"a node that is not ready has no plugin", withSlices(slice("s", ours, "w3", "n3")),
			"PluginGone s stays, node w3 has no pod of the plugin: left alone: the node is not ready: the plugin may " +
				"be alive where nobody sees it\n"},
		{"a node without the plugin does not own the slice", withSlices(slice("s", ours, "w2", "")),
			"PluginGone s stays, node w2 has no pod of the plugin: left alone: it belongs to no node alone " +
				"(ownerReferences)\n"},
		{"a slice came back after it had been removed", func(w *Snapshot) {
			withSlices(slice("s", ours, "w2", "n2"))(w)
			w.Returned["n2"] = true
		}, "PluginGone s stays, node w2 has no pod of the plugin: left alone: it came back after it had been " +
			"removed: somebody publishes it\n"},
		{"a node gets its slices from elsewhere", func(w *Snapshot) {
			withSlices(slice("s", ours, "w2", "n2"), slice("t", ours, "w2", "n0"))(w)
			w.Nodes["w2"] = Node{UID: "n2", Exempt: true, Ready: true}
		}, "NodeGone t goes, its node was replaced by another one with the name w2\n"},
		{"no node has a pod of the plugin", func(w *Snapshot) {
			withSlices(slice("s", ours, "w2", "n2"), slice("t", ours, "w9", "n9"))(w)
			w.Plugins = nil
		}, "NodeGone t goes, its node w9 is gone\n"},

		{"a claim was made for a pod that is there", withClaims(claim("c", one, madeFor("p", "here"),
			reservedFor("p", "here"))), ""},
		{"a claim was made for a pod that is gone", withClaims(claim("c", one, madeFor("p", "dead"),
			reservedFor("p", "dead"))), "PodGone c goes, its pod p is gone\n"},
		{"the pod of a claim was made again under the same name", withClaims(claim("c", one, madeFor("p", "dead"))),
			"PodGone c goes, its pod p is gone\n"},
		{"the claim of another driver survives its pod", withClaims(claim("c", []string{theirs}, madeFor("p", "dead"))),
			""},
		{"a claim without devices survives its pod", withClaims(claim("c", nil, madeFor("p", "dead"))), ""},
		{"a claim with devices of two drivers is only reported",
			withClaims(claim("c", []string{theirs, ours}, madeFor("p", "dead"))),
			"PodGone c stays, its pod p is gone: left alone: it has devices of several drivers: gpu.nvidia.com, " +
				"nic.example.com\n"},
		{"a claim that another pod uses is only reported",
			withClaims(claim("c", one, madeFor("p", "dead"), reservedFor("q", "here"))),
			"PodGone c stays, its pod p is gone: left alone: it is reserved for another that is there\n"},
		{"a claim that something else than a pod uses is only reported",
			withClaims(claim("c", one, madeFor("p", "dead"), reservedFor("q", "dead"),
				func(c *resourceapi.ResourceClaim) { c.Status.ReservedFor[0].Resource = "podgroups" })),
			"PodGone c stays, its pod p is gone: left alone: it is reserved for another that is there\n"},
		{"a claim with another owner is only reported",
			withClaims(claim("c", one, madeFor("p", "dead"), func(c *resourceapi.ResourceClaim) {
				c.OwnerReferences = append(c.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap",
					Name: "c", UID: "c"})
			})), "PodGone c stays, its pod p is gone: left alone: it has other owners too\n"},
		{"a claim that is deleted waits for a finalizer", withClaims(claim("c", one, madeFor("p", "dead"), deleted)),
			"DeletionStuck c stays, its pod p is gone; it is deleted, and waits for example.com/hold\n"},
		{"a claim that is deleted waits for its pod", withClaims(claim("c", one, madeFor("p", "here"),
			reservedFor("p", "here"), deleted)), ""},
		{"a claim that is deleted waits for another's pod",
			withClaims(claim("c", one, madeFor("p", "dead"), reservedFor("q", "here"), deleted)), ""},
		{"a claim made by hand is used",
			withClaims(claim("c", one, reservedFor("p", "dead"), reservedFor("q", "here"))),
			""},
		{"a claim made by hand is free", withClaims(claim("c", one)), ""},
		{"a claim made by hand is reserved for pods that are gone",
			withClaims(claim("c", one, reservedFor("p", "dead"))),
			"ReservationStale c stays, no pod that it is reserved for is there: left alone: nobody has made it for " +
				"one pod alone: kube-controller-manager frees it\n"},
		{"a claim made by hand is deleted and waits for a finalizer", withClaims(claim("c", one, deleted)),
			"DeletionStuck c stays, no pod that it is reserved for is there; it is deleted, and waits for " +
				"example.com/hold\n"},
		{"sorted by name", func(w *Snapshot) {
			withSlices(slice("t", ours, "w9", "n9"), slice("s", ours, "w9", "n9"))(w)
			withClaims(claim("c", one, madeFor("p", "dead")))(w)
		}, "PodGone c goes, its pod p is gone\nNodeGone s goes, its node w9 is gone\nNodeGone t goes, its node w9 is " +
			"gone\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := snapshot(tc.snapshot)
			none, since := Decide(w, nil, start, grace)
			if len(none) != 0 {
				t.Errorf("before grace: got %s, want nothing", format(none))
			}
			got, _ := Decide(w, since, start.Add(grace), grace)
			if format(got) != tc.want {
				t.Errorf("got\n%s\nwant\n%s", format(got), tc.want)
			}
		})
	}
}

func TestGrace(t *testing.T) {
	type sweepRun struct {
		minute   int
		snapshot func(*Snapshot)
		want     string
	}
	notReady := func(w *Snapshot) {
		withSlices(slice("s", ours, "w2", "n2"))(w)
		w.Nodes["w2"] = Node{UID: "n2"}
	}
	bare, fine := withSlices(slice("s", ours, "w2", "n2")), func(w *Snapshot) {
		withSlices(slice("s", ours, "w2", "n2"))(w)
		w.Plugins["w2"] = true
	}
	const goes, stays = "PluginGone s goes", "PluginGone s stays"
	for _, tc := range []struct {
		name string
		runs []sweepRun
	}{
		{"it is not over yet", []sweepRun{{0, bare, ""}, {4, bare, ""}}},
		{"it is over", []sweepRun{{0, bare, ""}, {4, bare, ""}, {5, bare, goes}}},
		{"the plugin comes back and grace starts again", []sweepRun{{0, bare, ""}, {4, fine, ""}, {5, bare, ""},
			{9, bare, ""}, {10, bare, goes}}},
		{"another slice of the same name has its own grace",
			[]sweepRun{{0, bare, ""}, {5, withSlices(slice("s", ours, "w2", "n2",
				func(s *resourceapi.ResourceSlice) { s.UID = "other" })), ""}}},
		{"what was only reported may be removed after another grace",
			[]sweepRun{{0, notReady, ""}, {5, notReady, stays}, {6, bare, stays}, {10, bare, stays}, {11, bare, goes}}},
		{"grace starts again after a moment in which removal was not allowed",
			[]sweepRun{{0, bare, ""}, {4, notReady, ""}, {5, bare, stays}, {9, bare, stays}, {10, bare, goes}}},
		{"another reason has its own grace", []sweepRun{{0, bare, ""},
			{4, func(w *Snapshot) { bare(w); delete(w.Nodes, "w2") }, ""},
			{9, func(w *Snapshot) { bare(w); delete(w.Nodes, "w2") }, "NodeGone s goes"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var since Since
			for _, l := range tc.runs {
				var got []Finding
				got, since = Decide(snapshot(l.snapshot), since, start.Add(time.Duration(l.minute)*time.Minute), grace)
				short, _, _ := strings.Cut(format(got), ",")
				if short != l.want {
					t.Errorf("minute %d: got %q, want %q", l.minute, short, l.want)
				}
			}
		})
	}
}

// The attribute distinguishes the plugin's devices from those of a driver with the same name, also after SlimSlice.
func TestDevicesHavePluginAttribute(t *testing.T) {
	v := view.New(ours)
	devices := 0
	for _, s := range viewtest.Slices(t, viewtest.Node{Name: "w2", Profile: "dgx-h100"}) {
		for _, d := range v.SlimSlice(s).Spec.Devices {
			if _, ok := d.Attributes[pluginAttribute]; !ok {
				t.Errorf("device %s has no attribute %s", d.Name, pluginAttribute)
			}
			devices++
		}
	}
	if devices == 0 {
		t.Error("no devices")
	}
}
