// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// text prints the view: the kinds, then the GPUs with their holders.
func text(v *cluster.View) string {
	var lines []string
	for g := range v.GPUs {
		var holders []string
		for _, h := range g.Held {
			holders = append(holders, h.Claim.Name+" "+h.Device)
		}
		slices.Sort(holders)
		line := fmt.Sprintf("%s %s %s [%s]", g.Node, g.Name, g.Whole.Kind, strings.Join(holders, ", "))
		if !g.Admits(nil) {
			line += " tainted"
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// claim returns a claim that holds the device; consumed as "memory=5Gi".
func claim(name, pool, device string, consumed ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	result := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: clustertest.Driver, Pool: pool,
		Device: device}
	for _, text := range consumed {
		what, amount, _ := strings.Cut(text, "=")
		if result.ConsumedCapacity == nil {
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
		}
		result.ConsumedCapacity[resourceapi.QualifiedName(what)] = resource.MustParse(amount)
	}
	c.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{result}},
	}
	return c
}

func TestView(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	const empty = "a gpu-3b-00-0 Tesla T4 []\na gpu-af-00-0 Tesla T4 []"
	same := func(what, want string) {
		t.Helper()
		if got := text(v); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
		}
	}
	same("nobody has anything", empty)

	v.SetClaim(claim("one", "a", "gpu-3b-00-0", "memory=5Gi"))
	v.SetClaim(claim("two", "a", "gpu-3b-00-0", "memory=6Gi"))
	admin := claim("admin", "a", "gpu-af-00-0")
	admin.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	v.SetClaim(admin)
	other := claim("other", "a", "gpu-af-00-0")
	other.Status.Allocation.Devices.Results[0].Driver = "gpu.example.com"
	v.SetClaim(other)
	same("two share one", "a gpu-3b-00-0 Tesla T4 [one gpu-3b-00-0, two gpu-3b-00-0]\na gpu-af-00-0 Tesla T4 []")

	v.SetClaim(claim("two", "a", "gpu-af-00-0"))
	v.DeleteClaim(types.NamespacedName{Namespace: "ns", Name: "one"})
	v.DeleteClaim(types.NamespacedName{Namespace: "ns", Name: "unknown"})
	same("one moves, one goes", "a gpu-3b-00-0 Tesla T4 []\na gpu-af-00-0 Tesla T4 [two gpu-af-00-0]")

	// An informer that was disconnected while a claim was deleted and re-created reports only an update.
	v.SetClaim(claim("again", "a", "gpu-3b-00-0"))
	again := clustertest.Claim(t, `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]`)
	again.Namespace, again.Name, again.UID = "ns", "again", "another"
	v.SetClaim(again)
	same("a claim is replaced by one that waits", "a gpu-3b-00-0 Tesla T4 []\na gpu-af-00-0 Tesla T4 [two gpu-af-00-0]")

	slices := clustertest.Slices(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	tainted, monitor := slices[0], slices[1]
	fabric := tainted.DeepCopy()
	fabric.Name, fabric.Spec.NodeName, fabric.Spec.Pool.Name = "fabric", nil, "fabric1"
	fabric.Spec.NodeSelector = &corev1.NodeSelector{}
	v.SetSlice(v.SlimSlice(fabric))
	same("a fabric offers GPUs", "a gpu-3b-00-0 Tesla T4 []\na gpu-af-00-0 Tesla T4 [two gpu-af-00-0]")
	tainted.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "k",
		Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	tainted.Spec.Devices[1].Taints = []resourceapi.DeviceTaint{{Key: "k", Effect: resourceapi.DeviceTaintEffectNone}}
	v.SetSlice(v.SlimSlice(tainted))
	same("one is tainted", "a gpu-3b-00-0 Tesla T4 [] tainted\na gpu-af-00-0 Tesla T4 [two gpu-af-00-0]")

	next := tainted.DeepCopy()
	next.Name = "next"
	v.SetSlice(v.SlimSlice(next))
	v.DeleteSlice(tainted.Name)
	same("another slice has the GPUs", "a gpu-3b-00-0 Tesla T4 [] tainted\na gpu-af-00-0 Tesla T4 [two gpu-af-00-0]")
	v.DeleteSlice(next.Name)
	v.SetClaim(claim("watches", "a/monitor", "monitor"))
	same("the monitor device has a pool of its own", "")
	v.DeleteClaim(types.NamespacedName{Namespace: "ns", Name: "watches"})
	v.DeleteSlice(monitor.Name)
	same("the node is gone", "")
	if kinds := v.Kinds(); len(kinds) != 0 {
		t.Errorf("got %v, want no kinds of devices", kinds)
	}
	for _, s := range clustertest.Slices(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}) {
		v.SetSlice(v.SlimSlice(s))
	}
	same("it is back, and its claim with it", "a gpu-3b-00-0 Tesla T4 []\na gpu-af-00-0 Tesla T4 [two gpu-af-00-0]")
}

// The kinds of partitions are known while no GPU has some published, if that may change.
func TestKindsOfPartitionsOnDemand(t *testing.T) {
	for _, mode := range []gpu.Partitions{gpu.PartitionsOnDemand, gpu.PartitionsDynamic} {
		node := clustertest.SimNode{Name: "a", Profile: "dgx-h100", Use: gpu.SharingMode{Partitions: mode}}
		v := clustertest.New(t, node)
		before := len(v.Kinds())
		for _, s := range clustertest.Slices(t, node) {
			if len(s.Spec.Devices) > 0 && gpu.IsPartition(s.Spec.Devices[0].Name) {
				v.DeleteSlice(s.Name)
			}
		}
		want := before
		if mode == gpu.PartitionsDynamic {
			want = 2 // the GPU and the monitor
		}
		if got := len(v.Kinds()); got != want || before != 9 {
			t.Errorf("%s: got %d kinds, before %d; want %d", mode, got, before, want)
		}
	}
}

// The number of kinds does not depend on the number of nodes. SlimSlice keeps one partition per profile.
func TestKinds(t *testing.T) {
	one := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100"})
	three := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100"},
		clustertest.SimNode{Name: "b", Profile: "dgx-h100"}, clustertest.SimNode{Name: "c", Profile: "dgx-h100"})
	names := func(v *cluster.View) (all []string) {
		for _, k := range v.Kinds() {
			all = append(all, k.String())
		}
		return all
	}
	want := []string{
		"MIG 1g.10gb of NVIDIA H100 80GB HBM3", "MIG 1g.10gb+me of NVIDIA H100 80GB HBM3",
		"MIG 1g.20gb of NVIDIA H100 80GB HBM3",
		"MIG 2g.20gb of NVIDIA H100 80GB HBM3", "MIG 3g.40gb of NVIDIA H100 80GB HBM3",
		"MIG 4g.40gb of NVIDIA H100 80GB HBM3",
		"MIG 7g.80gb of NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "the monitor device",
	}
	if got := names(one); !slices.Equal(got, want) {
		t.Errorf("one node: got %q, want %q", got, want)
	}
	if got := names(three); !slices.Equal(got, want) {
		t.Errorf("three nodes: got %q, want %q", got, want)
	}
	v := cluster.New(clustertest.Driver)
	var full, kept int
	for range 2 { // which partition is the largest is known after the first node
		full, kept = 0, 0
		for _, s := range clustertest.Slices(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100"}) {
			full += len(s.Spec.Devices)
			kept += len(v.SlimSlice(s).Spec.Devices)
		}
	}
	// Eight GPUs and the monitor; of each slice with partitions one per profile; and the largest one of each GPU.
	if full < 200 || kept > 9+2*7+8 {
		t.Errorf("of %d devices %d are kept, want the GPUs, one partition of each profile for each slice, and the "+
			"largest of each GPU", full, kept)
	}
}

// TestDifferentNodes: a combination is there once, follows the slices, and is not computed again while they stay.
func TestDifferentNodes(t *testing.T) {
	v := clustertest.New(t)
	two, four := clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "c", Profile: "l40s-x4"}
	other := clustertest.SimNode{Name: "b", Profile: "t4-x2"}
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"no node", func() {}, ""},
		{"one node", func() { set(t, v, two) }, "2 Tesla T4"},
		{"an equal one", func() { set(t, v, other) }, "2 Tesla T4"},
		{"another one", func() { set(t, v, four) }, "2 Tesla T4, 4 NVIDIA L40S"},
		{"one of the equal ones has gone", func() { unset(t, v, two) }, "2 Tesla T4, 4 NVIDIA L40S"},
		{"so has the other", func() { unset(t, v, other) }, "4 NVIDIA L40S"},
	} {
		step.do()
		var all []string
		v.Nodes(v.DifferentNodes(), func(_ int, n *cluster.NodeDevices) {
			all = append(all, fmt.Sprint(len(n.GPUs), " ", n.GPUs[0].Product()))
		})
		slices.Sort(all)
		if got := strings.Join(all, ", "); got != step.want {
			t.Errorf("%s: got %q, want %q", step.name, got, step.want)
		}
	}
	if got := testing.AllocsPerRun(10, func() { v.DifferentNodes() }); got != 0 {
		t.Errorf("got %v allocations of a call without a change, want none", got)
	}
}

func set(t *testing.T, v *cluster.View, node clustertest.SimNode) {
	t.Helper()
	for _, s := range clustertest.Slices(t, node) {
		v.SetSlice(s)
	}
}

func unset(t *testing.T, v *cluster.View, node clustertest.SimNode) {
	t.Helper()
	for _, s := range clustertest.Slices(t, node) {
		v.DeleteSlice(s.Name)
	}
}

func TestFits(t *testing.T) {
	for _, tc := range []struct {
		name  string
		use   gpu.SharingMode
		held  []*resourceapi.ResourceClaim
		asked string
		want  bool
	}{
		{"a free GPU", gpu.SharingMode{}, nil, "", true},
		{"one that has a share taken", gpu.SharingMode{}, []*resourceapi.ResourceClaim{claim("x", "a", "gpu-3b-00-0",
			"memory=1Gi", "cores=0")}, "", false},
		{"room for another share", gpu.SharingMode{}, []*resourceapi.ResourceClaim{claim("x", "a", "gpu-3b-00-0",
			"memory=5Gi", "cores=40")}, "memory=5Gi cores=60", true},
		{"too little memory", gpu.SharingMode{}, []*resourceapi.ResourceClaim{claim("x", "a", "gpu-3b-00-0",
			"memory=5Gi", "cores=40")}, "memory=11Gi", false},
		{"too few cores", gpu.SharingMode{}, []*resourceapi.ResourceClaim{claim("x", "a", "gpu-3b-00-0", "memory=5Gi",
			"cores=40")}, "memory=5Gi cores=61", false},
		{"more than it has", gpu.SharingMode{}, nil, "memory=20Gi", false},
		{"what it does not have", gpu.SharingMode{}, nil, "shares=1", false},
		{"a partition is there", gpu.SharingMode{}, []*resourceapi.ResourceClaim{claim("x", "a",
			"gpu-3b-00-0-mig-1g10gb-0")}, "memory=1Gi", false},
		{"exclusive and free", gpu.SharingMode{Sharing: gpu.Exclusive}, nil, "memory=5Gi", true},
		{"exclusive and taken", gpu.SharingMode{Sharing: gpu.Exclusive},
			[]*resourceapi.ResourceClaim{claim("x", "a", "gpu-3b-00-0")}, "memory=5Gi", false},
		{"the last replica", gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 2},
			[]*resourceapi.ResourceClaim{claim("x", "a", "gpu-3b-00-0", "shares=1")}, "", true},
		{"unlimited, and many have it", gpu.SharingMode{Sharing: gpu.Unlimited}, []*resourceapi.ResourceClaim{
			claim("x", "a", "gpu-3b-00-0", "memory=0", "cores=0"), claim("y", "a", "gpu-3b-00-0", "memory=15Gi",
				"cores=0")}, "", true},
		{"unlimited, and the counted memory is taken", gpu.SharingMode{Sharing: gpu.Unlimited},
			[]*resourceapi.ResourceClaim{claim("x", "a", "gpu-3b-00-0", "memory=15Gi", "cores=0")}, "memory=1Mi",
			false},
		{"no replica is left", gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 2},
			[]*resourceapi.ResourceClaim{claim("x", "a", "gpu-3b-00-0", "shares=2")}, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: tc.use})
			for _, c := range tc.held {
				v.SetClaim(c)
			}
			asked := map[resourceapi.QualifiedName]resource.Quantity{}
			for _, text := range strings.Fields(tc.asked) {
				what, amount, _ := strings.Cut(text, "=")
				asked[resourceapi.QualifiedName(what)] = resource.MustParse(amount)
			}
			var serves []bool
			for g := range v.GPUs {
				if g.Name == "gpu-3b-00-0" {
					serves = append(serves, fits(g, asked, nil))
				}
			}
			if !slices.Equal(serves, []bool{tc.want}) {
				t.Errorf("got %t, want %t", serves, tc.want)
			}
		})
	}
}

func TestWaiting(t *testing.T) {
	v := cluster.New(clustertest.Driver)
	for name, devices := range map[string]string{
		"one":         `requests: [{name: gpu, exactly: {deviceClassName: strongest}}]`,
		"three":       `requests: [{name: gpu, firstAvailable: [{name: a, deviceClassName: strongest, count: 3}, {name: b, deviceClassName: strongest, count: 3}]}]`,
		"another":     `requests: [{name: gpu, exactly: {deviceClassName: gpu}}]`,
		"for an hour": `requests: [{name: gpu, exactly: {deviceClassName: strongest}}]`,
	} {
		c := clustertest.Claim(t, devices)
		c.Name, c.CreationTimestamp = name, metav1.Now()
		if name == "for an hour" {
			c.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
		}
		v.SetClaim(cluster.SlimClaim(c))
	}
	if got := v.Waiting("strongest", time.Now().Add(-time.Minute)); got != 4 {
		t.Errorf("got %d devices, want 4", got)
	}
	v.SetClaim(claim("three", "a", "gpu-3b-00-0"))
	if got := v.Waiting("strongest", time.Now().Add(-time.Minute)); got != 1 {
		t.Errorf("when three have been found: got %d devices, want 1", got)
	}
}

// Available follows every change. It counts as a walk over all GPUs does.
func TestAvailable(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "b",
		Profile: "t4-x2"},
		clustertest.SimNode{Name: "x", Profile: "l40s-x4", Use: gpu.SharingMode{Sharing: gpu.Exclusive}})
	random := rand.New(rand.NewPCG(1, 2))
	gpus := []string{"gpu-3b-00-0", "gpu-af-00-0"}
	parts := [][]string{nil, {"memory=15360Mi", "cores=0"}, {"memory=5Gi", "cores=30"}, {"memory=1Gi", "cores=0"}}
	asked := []map[resourceapi.QualifiedName]resource.Quantity{nil, {"memory": resource.MustParse("5Gi")},
		{"memory": resource.MustParse("5Gi"), "cores": resource.MustParse("80")},
		{"memory": resource.MustParse("20Gi")}}
	for step := range 400 {
		name, node := fmt.Sprint("claim-", random.IntN(8)), []string{"a", "b"}[random.IntN(2)]
		switch random.IntN(10) {
		case 0, 1, 2, 3, 4:
			v.SetClaim(claim(name, node, gpus[random.IntN(2)], parts[random.IntN(len(parts))]...))
		case 5, 6, 7:
			v.DeleteClaim(types.NamespacedName{Namespace: "ns", Name: name})
		default:
			slice := clustertest.Slices(t, clustertest.SimNode{Name: node, Profile: "t4-x2"})[0]
			switch random.IntN(3) {
			case 0:
				slice.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "k",
					Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			case 1:
				v.DeleteSlice(slice.Name)
				continue
			}
			v.SetSlice(v.SlimSlice(slice))
		}
		for _, k := range v.Kinds() {
			if k.Type() != gpu.TypeGPU {
				continue
			}
			for _, want := range asked {
				for i := range 4 {
					count, tolerations := int64(1+i%2), [][]resourceapi.DeviceToleration{nil, {{Key: "k",
						Operator: resourceapi.DeviceTolerationOpExists}}}[i/2]
					free, beside, nodes := map[string]int64{}, map[string]bool{}, map[string]bool{}
					for g := range v.GPUs {
						if g.Whole.Kind == k && fits(g, want, tolerations) {
							free[g.Node]++
							if len(g.Held) > 0 {
								beside[g.Node] = true
							}
						}
					}
					var devices int64
					for _, n := range free {
						devices += n / count * count
					}
					v.Beside(k, k.Takes(want), tolerations, nodes)
					if k.Has(want) && !maps.Equal(nodes, beside) {
						t.Fatalf("step %d: %s for %v beside others: got %v, want %v\n%s", step, k, want, nodes, beside,
							text(v))
					}
					if got := v.Available(k, asks(want, tolerations, count), 100); k.Has(want) && got != devices {
						t.Fatalf("step %d: %s for %v by %d, tolerating %v: got %d, want %d\n%s", step, k, want, count,
							tolerations, got, devices, text(v))
					}
				}
			}
		}
	}
}

// asks returns a request for that many GPUs.
func asks(capacities map[resourceapi.QualifiedName]resource.Quantity, tolerations []resourceapi.DeviceToleration,
	count int64) cluster.Subrequest {
	spec := &resourceapi.ResourceClaimSpec{}
	spec.Devices.Requests = []resourceapi.DeviceRequest{{Exactly: &resourceapi.ExactDeviceRequest{Count: count,
		Capacity: &resourceapi.CapacityRequirements{Requests: capacities}, Tolerations: tolerations}}}
	return cluster.Subrequests(spec)[0]
}

// fits reports whether the whole GPU can serve another request for these capacities now.
func fits(g *cluster.GPU, asked map[resourceapi.QualifiedName]resource.Quantity,
	tolerations []resourceapi.DeviceToleration) bool {
	return g.Whole != nil && g.Admits(tolerations) && g.Whole.Kind.Has(asked) &&
		g.Whole.Kind.Room(g.Use(), g.Whole.Kind.Takes(asked))
}

// The view of a cluster with 641,000 devices is full in a few seconds: each device costs some microseconds.
func BenchmarkFill(b *testing.B) {
	for b.Loop() {
		clustertest.Fleet(b, cluster.New(clustertest.Driver), 500, 8, gpu.SharingMode{})
	}
}

func TestExtendedResources(t *testing.T) {
	v := cluster.New("gpu.nvidia.com")
	class := func(name, driver string, resource *string) {
		selector := resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
			Expression: "device.driver == '" + driver + "'"}}
		v.SetClass(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.DeviceClassSpec{ExtendedResourceName: resource,
				Selectors: []resourceapi.DeviceSelector{selector}}})
	}
	if got := v.ExtendedResources(); got == nil || len(got) != 0 {
		t.Errorf("without classes: got %#v, want an empty list", got)
	}
	class("b", "gpu.nvidia.com", ptr.To("nvidia.com/gpu.shared"))
	class("a", "gpu.nvidia.com", ptr.To("nvidia.com/gpu"))
	class("none", "gpu.nvidia.com", nil)
	class("other", "gpu.example.com", ptr.To("example.com/gpu"))
	if got := strings.Join(v.ExtendedResources(), " "); got != "nvidia.com/gpu nvidia.com/gpu.shared" {
		t.Errorf("got %s", got)
	}
	class("z", "gpu.nvidia.com", ptr.To("nvidia.com/gpu"))
	newest, _ := v.Class("b")
	newest = newest.DeepCopy()
	newest.Name, newest.CreationTimestamp = "newest", metav1.Now()
	v.SetClass(newest)
	for resource, want := range map[string]string{"nvidia.com/gpu": "a", "nvidia.com/gpu.shared": "newest",
		"deviceclass.resource.kubernetes.io/none": "none", "example.com/gpu": "",
		"deviceclass.resource.kubernetes.io/other": ""} {
		if got, ok := v.ExtendedClass(resource); ok != (want != "") || ok && got != want {
			t.Errorf("%s: got %q %t, want %q", resource, got, ok, want)
		}
	}
}
