// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// The benchmarks are those of docs/project/upstream.md: a pool of devices that consume counters, as partitions do,
// without anything of this driver.

var classes = Classes{"any": {}, "second": {Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.
	DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.attributes['d'].second"}}}}}}

// pool returns the slices of a node with so many devices. All consume one of a counter, which has enough for a few. The
// attribute "second" of every second one is true.
func pool(devices int, counter int64) []*resourceapi.ResourceSlice {
	one := map[string]resourceapi.Counter{"gpu": {Value: resource.MustParse("1")}}
	all := map[string]resourceapi.Counter{"gpu": {Value: *resource.NewQuantity(counter, resource.DecimalSI)}}
	const most = 50 // of a slice with counters
	slices := 1 + (devices+most-1)/most
	next := func(name string) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.ResourceSliceSpec{Driver: "d", NodeName: ptr.To("node"),
				Pool: resourceapi.ResourcePool{Name: "node", Generation: 1, ResourceSliceCount: int64(slices)}}}
	}
	published := []*resourceapi.ResourceSlice{next("counters")}
	published[0].Spec.SharedCounters = []resourceapi.CounterSet{{Name: "set", Counters: all}}
	for i := range devices {
		if i%most == 0 {
			published = append(published, next(fmt.Sprint("devices-", i/most)))
		}
		s := published[len(published)-1]
		d := resourceapi.Device{Name: fmt.Sprint("device-", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"second": {BoolValue: ptr.To(i%2 == 1)}},
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "set", Counters: one}}}
		s.Spec.Devices = append(s.Spec.Devices, d)
	}
	return published
}

// claim asks for so many devices of the class.
func claim(class string, count int64) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: "claim"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: count,
				AllocationMode: resourceapi.DeviceAllocationModeExactCount}}}}}}
}

var node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}

// shares hold devices of other nodes, ten of each.
func shares(count int) Held {
	held := HeldBy(nil, nil)
	for i := range count {
		held.Add(resourceapi.DeviceRequestAllocationResult{Driver: "d", Pool: fmt.Sprint("other-", i/10),
			Device: "device", ShareID: ptr.To(types.UID(fmt.Sprint(i)))})
	}
	return held
}

func TestPlace(t *testing.T) {
	exclusive := resourceapi.DeviceRequestAllocationResult{Driver: "d", Pool: "node", Device: "device-0"}
	admin := exclusive
	admin.AdminAccess = ptr.To(true)
	for _, row := range []struct {
		name, class, want string
		held              []resourceapi.DeviceRequestAllocationResult
	}{
		{"the first device", "any", "device-0", nil},
		{"the first that the class accepts", "second", "device-1", nil},
		{"the counter is used up", "any", "", []resourceapi.DeviceRequestAllocationResult{exclusive}},
		{"admin access uses nothing", "any", "device-0", []resourceapi.DeviceRequestAllocationResult{admin}},
	} {
		t.Run(row.name, func(t *testing.T) {
			other := claim("any", 1)
			other.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: row.held}}
			held := HeldBy([]*resourceapi.ResourceClaim{other}, nil)
			results, err := classes.Place(t.Context(), NewCache(10), node, pool(4, 1), held, claim(row.class, 1))
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, r := range results {
				got += r.Devices.Results[0].Device
			}
			if got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestHeldBy(t *testing.T) {
	held := claim("any", 1)
	held.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Driver: "d", Pool: "p", Device: "device"}}}}
	claims := []*resourceapi.ResourceClaim{claim("any", 1), held}
	if some, all := HeldBy(claims, nil).Any(NameOf("d", "p", "device")); !some || !all {
		t.Errorf("got some %t and all %t, want both", some, all)
	}
	if some, _ := HeldBy(claims, map[types.UID]bool{"claim": true}).Any(NameOf("d", "p", "device")); some {
		t.Error("a claim that has ended holds a device")
	}
}

func TestShares(t *testing.T) {
	held := HeldBy(nil, nil)
	for _, share := range []types.UID{"a", "b"} {
		held.Add(resourceapi.DeviceRequestAllocationResult{Driver: "d", Pool: "p", Device: "device", ShareID: &share,
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("2Gi")}})
	}
	id := NameOf("d", "p", "device")
	if some, all := held.Any(id); !some || all {
		t.Errorf("two shares: got some %t and all %t, want only some", some, all)
	}
	if got := held.Capacity(id, "memory"); got == nil || got.String() != "4Gi" {
		t.Errorf("got %v of memory, want 4Gi", got)
	}
	if got := held.Capacity(id, "cores"); got != nil {
		t.Errorf("got %v of cores, want nothing", got)
	}
}

// place asks for devices of the node, as a scheduling cycle does for each node. Converting the slices does not count:
// the scheduler keeps them converted.
func place(b *testing.B, published []*resourceapi.ResourceSlice, held Held, c *resourceapi.ResourceClaim,
	fits bool) {
	b.Helper()
	cache := NewCache(10)
	for b.Loop() {
		b.StopTimer()
		scheduler, err := New(b.Context(), held, classes, published, cache)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		got, err := scheduler.Allocate(b.Context(), node, []*resourceapi.ResourceClaim{c})
		if err != nil || len(got) > 0 != fits {
			b.Fatal(got, err)
		}
	}
}

// A claim for one device of a node, which has 200, while shares of devices of other nodes are held.
func BenchmarkSharesElsewhere(b *testing.B) {
	for _, count := range []int{0, 1000, 10_000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) { place(b, pool(200, 1), shares(count), claim("any", 1), true) })
	}
}

// A claim for a device of a node whose counter is used up: no device can be taken, and all are put to the expression.
func BenchmarkUsedUp(b *testing.B) {
	for _, devices := range []int{10, 200} {
		b.Run(fmt.Sprint(devices), func(b *testing.B) {
			held := HeldBy(nil, nil)
			held.Add(resourceapi.DeviceRequestAllocationResult{Driver: "d", Pool: "node", Device: "device-0"})
			place(b, pool(devices, 1), held, claim("second", 1), false)
		})
	}
}

// A claim for the first device of a free node: the others are only validated.
func BenchmarkFree(b *testing.B) {
	for _, devices := range []int{10, 200} {
		b.Run(fmt.Sprint(devices), func(b *testing.B) {
			place(b, pool(devices, 1), HeldBy(nil, nil), claim("any", 1), true)
		})
	}
}

// A claim for one device more than the counter is enough for: every choice of the others is tried.
func BenchmarkOneTooMany(b *testing.B) {
	for _, devices := range []int{8, 12, 16} {
		b.Run(fmt.Sprint(devices), func(b *testing.B) {
			place(b, pool(devices, 5), HeldBy(nil, nil), claim("any", 6), false)
		})
	}
}

// What PreFilter copies for each pod, of so many shares.
func BenchmarkClone(b *testing.B) {
	for _, count := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			held := HeldBy(nil, nil)
			for i := range count {
				held.Add(resourceapi.DeviceRequestAllocationResult{Driver: "d", Pool: fmt.Sprint("other-", i),
					Device: "device", ShareID: ptr.To(types.UID(fmt.Sprint(i))),
					ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
						"memory": resource.MustParse("5Gi"), "cores": resource.MustParse("30")}})
			}
			for b.Loop() {
				held.state.AggregatedCapacity.Clone()
			}
		})
	}
}
