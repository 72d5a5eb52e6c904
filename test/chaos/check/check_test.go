// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// spec is a CDI spec with these device nodes and variables.
func spec(env string, nodes ...string) string {
	var paths []string
	for _, n := range nodes {
		paths = append(paths, fmt.Sprintf(`{"path": "/dev/%s"}`, n))
	}
	return fmt.Sprintf(`{"devices": [{"name": "x", "containerEdits": {"env": [%q], "deviceNodes": [%s]}}]}`, env,
		strings.Join(paths, ","))
}

// given makes a pod that runs on node-1 with a claim for the device, and adds both to the world.
func (w *World) given(name, device string, consumed map[resourceapi.QualifiedName]resource.Quantity) {
	uid := types.UID("pod-" + name)
	w.Pods = append(w.Pods, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: uid},
		Spec: corev1.PodSpec{NodeName: "node-1",
			ResourceClaims: []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: &name}},
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Claims: []corev1.ResourceClaim{{Name: "a", Request: "gpu"}}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}})
	w.Claims = append(w.Claims, resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name)},
		Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: uid}},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []result{{Request: "gpu/first", Driver: Driver, Pool: "node-1", Device: device,
					ConsumedCapacity: consumed}}}}}})
}

func memory(size string) map[resourceapi.QualifiedName]resource.Quantity {
	return map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(size)}
}

// healthy is a world with pods that have a whole GPU, a share, a partition, a GPU for a virtual machine, and a vGPU.
func healthy() World {
	var w World
	w.given("whole", "gpu-1", memory("8Gi"))
	w.given("share", "gpu-2", memory("1Gi"))
	w.given("part", "gpu-3-mig-1g10gb-4", nil)
	w.given("vm", "gpu-4-vfio", nil)
	w.given("vgpu", "gpu-5-vgpu-a16-4q-0", nil)
	counter := func(n string) map[string]resourceapi.Counter {
		return map[string]resourceapi.Counter{"slices": {Value: resource.MustParse(n)}}
	}
	type name = resourceapi.QualifiedName
	isolation := map[name]resourceapi.DeviceAttribute{"isolation": {StringValue: new("mps")}}
	gpu := func(device string) resourceapi.Device {
		return resourceapi.Device{Name: device, AllowMultipleAllocations: new(true), Attributes: isolation,
			Capacity:         map[name]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("8Gi")}},
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: device, Counters: counter("8")}}}
	}
	slice := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: Driver,
		Pool: resourceapi.ResourcePool{Name: "node-1", Generation: 2},
		SharedCounters: []resourceapi.CounterSet{{Name: "gpu-1", Counters: counter("8")},
			{Name: "gpu-3", Counters: counter("8")}},
		Devices: []resourceapi.Device{gpu("gpu-1"), gpu("gpu-2"), gpu("gpu-3"), {Name: "gpu-3-mig-1g10gb-4",
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "gpu-3", Counters: counter("1")}}},
			{Name: "gpu-4-vfio"}}}}
	old := *slice.DeepCopy() // is not judged by
	old.Spec.Pool.Generation, old.Spec.Devices[0].Capacity["memory"] = 1, resourceapi.DeviceCapacity{}
	w.Slices = []resourceapi.ResourceSlice{slice, old}
	container := func(pod string, nodes ...string) Container {
		return Container{ID: pod, Pod: types.UID("pod-" + pod), Name: "main", Devices: nodes}
	}
	w.Nodes = map[string]Node{"node-1": {
		GPUs: []GPU{{Name: "gpu-1", Minor: 0}, {Name: "gpu-2", Minor: 1},
			{Name: "gpu-3", Minor: 2, Partitions: []Partition{
				{Profile: "1g.10gb", Start: 4, Capabilities: [2]int{300, 301}},
				{Profile: "1g.10gb", Start: 5, Capabilities: [2]int{310, 311}}}},
			{Name: "gpu-4", Minor: 3, Group: 17},
			{Name: "gpu-5", Minor: 4, VGPUs: []VGPU{{"A16-4Q", 60}, {"A16-4Q", 61}}}},
		Machine: []string{"gpu-1 mode=Default"},
		Specs: map[types.UID]string{"whole": spec("A=b", "nvidia0", "nvidiactl"),
			"share": spec("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M", "nvidia1"),
			"part":  spec("", "nvidia2", "nvidia-caps/nvidia-cap300", "nvidia-caps/nvidia-cap301"),
			"vm":    spec("", "vfio/17"),
			"vgpu":  spec("", "vfio/60")},
		Containers: []Container{container("whole", "nvidia0", "nvidiactl"), container("share", "nvidia1"),
			container("part", "nvidia2", "nvidia-caps/nvidia-cap300", "nvidia-caps/nvidia-cap301"),
			container("vm", "vfio/17", "vfio/vfio"), container("vgpu", "vfio/60", "vfio/vfio"),
			{ID: "other", Pod: "unknown", Devices: []string{"nvidia0"}}},
	}}
	return w
}

// TestLook plants a violation of each rule in a healthy world.
func TestLook(t *testing.T) {
	none := func(*World) {}
	for name, tc := range map[string]struct {
		first, then func(w *World) // changes of the first and of the second look
		want        string
	}{
		"all is well": {none, none, ""},
		"a GPU for two claims": {none, func(w *World) { w.given("second", "gpu-4-vfio", nil) },
			Capacity + ": allocated to 2 claims: node-1/gpu-4-vfio (second, vm)"},
		"more memory than there is": {none, func(w *World) { w.given("second", "gpu-2", memory("7.5Gi")) },
			Capacity + ": allocated to claims: 8704Mi of 8Gi memory of node-1/gpu-2 (second, share)"},
		"a GPU beside its partition": {none, func(w *World) { w.given("second", "gpu-3", memory("8Gi")) },
			Capacity + ": allocated to devices: 9 of 8 of node-1/gpu-3/slices " +
				"(node-1/gpu-3, node-1/gpu-3-mig-1g10gb-4)"},
		"a GPU is given away while a container of a pod that is gone has it": {none, func(w *World) {
			w.Pods, w.Claims = w.Pods[:3], w.Claims[:3]
			w.given("second", "gpu-4-vfio", nil)
			n := w.Nodes["node-1"]
			n.Containers = append(n.Containers, Container{ID: "vm-2", Pod: "pod-second", Name: "main",
				Devices: []string{"vfio/17"}})
			n.Specs["second"] = spec("", "vfio/17")
			w.Nodes["node-1"] = n
		}, Capacity + ": in running containers of 2 claims: node-1/gpu-4-vfio (second, vm)"},
		"a GPU that it was not given": {none, see("whole", "nvidia1"),
			Sees + ": main of pod n/whole on node-1 has /dev/nvidia1 of gpu-2"},
		"a partition of another": {none, see("part", "nvidia-caps/nvidia-cap310"),
			Sees + ": main of pod n/part on node-1 has /dev/nvidia-caps/nvidia-cap310 of gpu-3-mig-1g10gb-5"},
		"a GPU for virtual machines": {none, see("whole", "vfio/17"),
			Sees + ": main of pod n/whole on node-1 has /dev/vfio/17 of gpu-4-vfio"},
		"a vGPU for two pods": {func(w *World) { giveVGPU(w) }, func(w *World) { giveVGPU(w) },
			Sees + ": pods n/vgpu and n/second on node-1 have /dev/vfio/60"},
		"a vGPU of none": {none, func(w *World) { w.Nodes["node-1"].Containers[4].Devices = nil },
			Sees + ": main of pod n/vgpu on node-1 lacks a device node of gpu-5-vgpu-a16-4q-0"},
		"a vGPU that it was not given": {none, see("whole", "vfio/61"),
			Sees + ": main of pod n/whole on node-1 has /dev/vfio/61 of gpu-5-vgpu-a16-4q"},
		"a device node is missing": {none, func(w *World) { w.Nodes["node-1"].Containers[0].Devices = nil },
			Sees + ": main of pod n/whole on node-1 lacks /dev/nvidia0 of gpu-1"},
		"a container that has just started": {func(w *World) { w.Nodes = nil }, see("whole", "nvidia1"), ""},
		"no spec": {none, func(w *World) { delete(w.Nodes["node-1"].Specs, "whole") },
			Spec + ": claim whole of pod n/whole on node-1: there is none"},
		"no spec of a pod that ends": {none, func(w *World) {
			delete(w.Nodes["node-1"].Specs, "whole")
			w.Pods[0].DeletionTimestamp = &metav1.Time{}
		}, ""},
		"a spec of another device": {none, func(w *World) { w.Nodes["node-1"].Specs["whole"] = spec("", "nvidia1") },
			Spec + ": claim whole of pod n/whole on node-1: lacks /dev/nvidia0 of gpu-1, has /dev/nvidia1 of gpu-2"},
		"a spec with another limit": {none, func(w *World) {
			w.Nodes["node-1"].Specs["share"] = spec("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M", "nvidia1")
		}, Spec + ": claim share of pod n/share on node-1: got CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M, want " +
			"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M"},
		"a spec without a limit": {none, func(w *World) { w.Nodes["node-1"].Specs["share"] = spec("", "nvidia1") },
			Spec + ": claim share of pod n/share on node-1: no limit, want CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M"},
		"a torn spec": {none, func(w *World) { w.Nodes["node-1"].Specs["whole"] = "{" },
			Spec + ": claim whole of pod n/whole on node-1: unexpected end of JSON input"},
	} {
		t.Run(name, func(t *testing.T) {
			var c Checker
			before, now := healthy(), healthy()
			tc.first(&before)
			// A pod of the second look may be in the first one, too, with its container.
			if tc.then(&now); strings.Contains(tc.want, "in running containers") {
				before.Nodes = maps.Clone(now.Nodes)
			}
			if got := c.Look(before); len(got) > 0 {
				t.Fatalf("the first look: got %v, want nothing", got)
			}
			if got := lines(c.Look(now)); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
	var c Checker
	c.Look(healthy())
	c.Look(healthy())
	if c.Containers != 5 || c.Specs != 5 {
		t.Errorf("got %d containers and %d specs judged, want 5 of each", c.Containers, c.Specs)
	}
}

// giveVGPU gives another pod the vGPU of the first one.
func giveVGPU(w *World) {
	w.given("second", "gpu-5-vgpu-a16-4q-1", nil)
	n := w.Nodes["node-1"]
	n.Containers = append(n.Containers, Container{ID: "second", Pod: "pod-second", Name: "main",
		Devices: []string{"vfio/60"}})
	n.Specs["second"] = spec("", "vfio/60")
	w.Nodes["node-1"] = n
}

func see(pod, node string) func(*World) {
	return func(w *World) {
		for i, c := range w.Nodes["node-1"].Containers {
			if c.ID == pod {
				w.Nodes["node-1"].Containers[i].Devices = append(slices.Clone(c.Devices), node)
			}
		}
	}
}

func lines(found []Violation) string {
	var out []string
	for _, v := range found {
		out = append(out, v.String())
	}
	return strings.Join(out, "\n")
}

func TestExtendedResource(t *testing.T) {
	w := healthy()
	w.Pods[0].Spec.ResourceClaims, w.Pods[0].Spec.Containers[0].Resources.Claims = nil, nil
	w.Pods[0].Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "whole",
		RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "main", RequestName: "gpu"}}}
	var c Checker
	c.Look(w)
	if got := lines(c.Look(w)); got != "" {
		t.Errorf("got %s, want nothing", got)
	}
	see("whole", "nvidia2")(&w)
	if got, want := lines(c.Look(w)), "main of pod n/whole on node-1 has /dev/nvidia2"; !strings.Contains(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestWaits: the time that something may wait counts from the end of the last outage, and is as long as the longest one
// and a margin.
func TestWaits(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var patient Waits
	patient.Margin = 10 * time.Minute
	pending := healthy()
	pending.Pods[0].Status.Phase = corev1.PodPending
	patient.Look(pending, start, Outage{})
	if got := patient.Look(pending, start.Add(9*time.Minute), Outage{}); len(got) > 0 {
		t.Errorf("a margin of 10 minutes: got %v after 9, want nothing", got)
	}
	if got := patient.Look(pending, start.Add(11*time.Minute), Outage{}); len(got) != 1 {
		t.Errorf("a margin of 10 minutes: got %v after 11, want one", got)
	}
	for name, tc := range map[string]struct {
		plant func(w *World)
		left  string
		want  string
	}{
		"nothing waits": {func(*World) {}, "", ""},
		"a pod that does not start": {func(w *World) { w.Pods[0].Status.Phase = corev1.PodPending }, "",
			Stuck + ": pod n/whole (pod-whole) on node-1 does not start, 2m30s after the last outage"},
		"a pod without a node waits for its turn": {func(w *World) {
			w.Pods[0].Status.Phase, w.Pods[0].Spec.NodeName = corev1.PodPending, ""
		}, "", ""},
		"a pod that does not end": {func(w *World) { w.Pods[0].DeletionTimestamp = &metav1.Time{} }, "",
			Stuck + `: pod n/whole (pod-whole) on "node-1" is deleted and does not end, 2m30s after the last outage`},
		"a claim that does not go": {func(w *World) { w.Claims[0].DeletionTimestamp = &metav1.Time{} }, "",
			Stuck + ": claim n/whole (whole) is deleted and does not go, 2m30s after the last outage"},
		"a claim of a pod that is gone": {func(w *World) { w.Pods = w.Pods[1:] }, "",
			Stuck + ": claim n/whole (whole) is reserved for pods that are gone, 2m30s after the last outage"},
		"something is left": {func(*World) {}, "node-1: claims/x.json",
			Left + ": node-1: claims/x.json, 2m30s after the last outage"},
	} {
		t.Run(name, func(t *testing.T) {
			world := healthy()
			tc.plant(&world)
			var left []string
			if tc.left != "" {
				left = append(left, tc.left)
			}
			var w Waits
			for _, step := range []struct {
				at     time.Duration
				outage Outage
			}{
				{0, Outage{}},
				{time.Hour, Outage{Ongoing: true, Longest: 30 * time.Second}},
				{time.Hour + 2*time.Minute, Outage{End: start.Add(time.Hour), Longest: 30 * time.Second}},
			} {
				if got := w.Look(world, start.Add(step.at), step.outage, left...); len(got) > 0 {
					t.Fatalf("after %s: got %v, want nothing", step.at, got)
				}
			}
			over := Outage{End: start.Add(time.Hour), Longest: 30 * time.Second}
			got := lines(w.Look(world, start.Add(time.Hour+3*time.Minute), over, left...))
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestRest plants each thing that pods can leave.
func TestRest(t *testing.T) {
	clean := func() World {
		return World{Nodes: map[string]Node{"node-1": {Machine: []string{"gpu-1 mode=Default"}}}}
	}
	change := func(f func(n *Node)) func(*World) {
		return func(w *World) {
			n := w.Nodes["node-1"]
			f(&n)
			w.Nodes["node-1"] = n
		}
	}
	for name, tc := range map[string]struct {
		plant func(*World)
		want  string
	}{
		"nothing":             {func(*World) {}, ""},
		"a pod and its claim": {func(w *World) { w.given("whole", "gpu-1", nil) }, "claim n/whole\npod n/whole"},
		"a record":            {change(func(n *Node) { n.Left = []string{"claims/x.json"} }), "node-1: claims/x.json"},
		"a container": {change(func(n *Node) { n.Containers = []Container{{Name: "main", Pod: "x"}} }),
			"node-1: container main of pod x"},
		"a partition": {change(func(n *Node) { n.Machine = append(n.Machine, "gpu-1/1g.10gb@4 gi=13 ci=0") }),
			"node-1: gpu-1/1g.10gb@4 gi=13 ci=0"},
		"a setting": {change(func(n *Node) { n.Machine = []string{"gpu-1 mode=Exclusive_Process"} }),
			"node-1: gpu-1 mode=Exclusive_Process\nno more node-1: gpu-1 mode=Default"},
		"a taint": {func(w *World) { w.Taints = []string{"node-1/gpu-1 x=:NoSchedule"} },
			"taint node-1/gpu-1 x=:NoSchedule"},
	} {
		t.Run(name, func(t *testing.T) {
			w := clean()
			tc.plant(&w)
			if got := strings.Join(w.Rest(clean()), "\n"); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}
