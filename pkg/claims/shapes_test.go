// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

// shape is a way to have a GPU: a published device, what a claim consumes of it, and how its containers share it.
type shape struct {
	device   resourceapi.Device
	consumes map[resourceapi.QualifiedName]resource.Quantity
	config   string
}

func (s shape) String() string {
	text := s.device.Name
	for _, name := range []resourceapi.QualifiedName{"memory", "cores", "shares"} {
		if q, ok := s.consumes[name]; ok {
			text += fmt.Sprintf(" %s=%s", name, &q)
		}
	}
	return text + " " + s.config
}

// claim returns a claim that the scheduler has given the shape.
func (s shape) claim(name string) *resourceapi.ResourceClaim {
	c := claim(name, s.device.Name+s.config)
	result := &c.Status.Allocation.Devices.Results[0]
	result.ConsumedCapacity = s.consumes
	if ptr.Deref(s.device.AllowMultipleAllocations, false) {
		result.ShareID = ptr.To(types.UID("share-" + name))
	}
	return c
}

// shapes returns the ways to have a GPU that is published so: each device with the amounts that a claim gets without
// asking, and a device with shares also with a third, and with two thirds, of each amount that may be asked for. Each
// of a GPU that containers see is also there with time slices.
func shapes(devices []resourceapi.Device) []shape {
	var all []shape
	for _, d := range devices {
		for third := range int64(3) {
			s := shape{device: d}
			asked := third == 0
			for name, c := range d.Capacity {
				p := c.RequestPolicy
				if p == nil || !ptr.Deref(d.AllowMultipleAllocations, false) {
					continue
				}
				q := *p.Default
				if third > 0 && p.ValidRange != nil {
					step := p.ValidRange.Step.Value()
					q = *resource.NewQuantity(c.Value.Value()*third/3/step*step, c.Value.Format)
					asked = true
				}
				if s.consumes == nil {
					s.consumes = map[resourceapi.QualifiedName]resource.Quantity{}
				}
				s.consumes[name] = q
			}
			if !asked {
				continue
			}
			all = append(all, s)
			if s.consumes != nil || ptr.Deref(d.Attributes["type"].StringValue, "") == string(gpu.TypeGPU) {
				s.config = " Long"
				all = append(all, s)
			}
		}
	}
	return all
}

// blocked reports whether the scheduler gives the device to nobody.
func blocked(d resourceapi.Device) bool {
	return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
		return t.Effect != resourceapi.DeviceTaintEffectNone
	})
}

// leaves says whether what is published leaves room for the second beside the first.
func leaves(pool []resourceapi.ResourceSlice, first, second shape) bool {
	counters := map[string]resource.Quantity{}
	var offered resourceapi.Device
	for _, s := range pool {
		for _, set := range s.Spec.SharedCounters {
			for name, c := range set.Counters {
				counters[set.Name+"/"+name] = c.Value.DeepCopy()
			}
		}
		for _, d := range s.Spec.Devices {
			if d.Name == second.device.Name {
				offered = d
			}
		}
	}
	if blocked(offered) {
		return false
	}
	if first.device.Name == second.device.Name {
		for name, q := range second.consumes {
			sum := q.DeepCopy()
			sum.Add(first.consumes[name])
			if total := offered.Capacity[name].Value; sum.Cmp(total) > 0 {
				return false
			}
		}
		return ptr.Deref(offered.AllowMultipleAllocations, false)
	}
	for _, d := range []resourceapi.Device{first.device, second.device} {
		for _, consumed := range d.ConsumesCounters {
			for name, c := range consumed.Counters {
				left := counters[consumed.CounterSet+"/"+name]
				left.Sub(c.Value)
				counters[consumed.CounterSet+"/"+name] = left
				if left.Sign() < 0 {
					return false
				}
			}
		}
	}
	return true
}

// offer returns the devices of a GPU on which these are made for claims.
func offer(d gpu.Device, made ...gpu.Device) inventory.Inventory {
	for _, m := range made {
		switch {
		case m.VGPU != nil:
			of := *d.VGPUs
			of.Existing = append(slices.Clone(of.Existing), *m.VGPU)
			d.VGPUs = &of
		case m.Partition != nil:
			d.MIG.Enabled, d.MIG.Instances = true, append(slices.Clone(d.MIG.Instances), *m.Partition)
		}
	}
	return inventory.New([]gpu.Device{d}).WithPartitions(func(gpu.Placement) bool { return true })
}

// pool returns what is published of the GPU.
func pool(inv inventory.Inventory) (all []resourceapi.ResourceSlice, devices []resourceapi.Device) {
	pools := inv.Pools("node")
	delete(pools, inventory.MonitorPool("node"))
	for _, s := range inventory.Slices(driver, "node", pools) {
		all, devices = append(all, *s), append(devices, s.Spec.Devices...)
	}
	return all, devices
}

// A scheduler that loses count gives a GPU twice. Of every two shapes, in both orders, Prepare accepts the second
// exactly if what is published leaves room for it, even before the GPU has been discovered again. Two shares of a GPU
// must also have the same time slice. A refused claim changes nothing.
func TestEveryTwoShapesOfAGPU(t *testing.T) {
	dynamic := gpu.SharingMode{Partitions: gpu.PartitionsDynamic}
	for _, row := range []struct {
		name, profile string
		use           gpu.SharingMode
		kinds         string            // of devices
		byHand        func(*gpu.Device) // what an administrator has made; nil: nothing
	}{
		{"partitions", "dgx-h100", dynamic, "gpu mig vfio", nil},
		{"partitions with and without engines", "rtxpro6000-x2", dynamic, "gpu mig vfio", nil},
		{"partitions by hand", "dgx-h100", gpu.SharingMode{Partitions: gpu.PartitionsStatic}, "mig",
			func(d *gpu.Device) {
				d.MIG.Enabled = true
				for start := range 2 {
					at := gpu.Placement{Parent: d.UUID, Profile: "1g.10gb", Start: start, Size: 1}
					d.MIG.Instances = append(d.MIG.Instances,
						gpu.Partition{UUID: gpu.UUID(fmt.Sprint("MIG-hand-", start)), Placement: at})
				}
			}},
		{"vGPUs", "a16-x4", gpu.SharingMode{}, "gpu vfio vgpu", nil},
		{"vGPUs by hand", "a16-x4", gpu.SharingMode{}, "vgpu", func(d *gpu.Device) {
			of := d.VGPUs.Types[0]
			d.VGPUs.Existing = []gpu.VGPU{{Parent: d.UUID, Type: of, Function: d.PCI, MDev: "ee-0"},
				{Parent: d.UUID, Type: of, Function: d.PCI, MDev: "ee-1"}}
		}},
		{"shares", "l40s-x4", gpu.SharingMode{}, "gpu vfio", nil},
		{"replicas", "l40s-x4", gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 3, Isolation: gpu.IsolationNone},
			"gpu vfio", nil},
		{"unlimited", "l40s-x4", gpu.SharingMode{Sharing: gpu.Unlimited, Isolation: gpu.IsolationNone},
			"gpu vfio", nil},
		{"exclusive", "l40s-x4", gpu.SharingMode{Sharing: gpu.Exclusive}, "gpu vfio", nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			d := simtest.Discover(t, row.profile)[0]
			d.Use = row.use
			if d.VFIO == nil || d.VFIO.Refusal != "" {
				d.VFIO = &gpu.VFIO{Functions: []gpu.PCIFunction{{PCI: d.PCI, Driver: "nvidia"}}}
			}
			if row.byHand != nil {
				row.byHand(&d)
			}
			inv := offer(d)
			_, devices := pool(inv)
			all := shapes(devices)
			kinds := map[string]bool{}
			for _, d := range devices {
				kinds[*d.Attributes["type"].StringValue] = true
			}
			if got := strings.Join(slices.Sorted(maps.Keys(kinds)), " "); got != row.kinds {
				t.Errorf("got devices %s, want %s", got, row.kinds)
			}
			for _, first := range all {
				if blocked(first.device) {
					continue
				}
				held, _ := inv.Find(first.device.Name)
				left, _ := pool(offer(d, held))
				w := newFixture(t)
				w.offered = inv
				for _, p := range d.MIG.Instances {
					w.mig[d.UUID], w.partitions[p.Placement] = true, p.UUID
				}
				for _, v := range d.VGPUs.Foreign() {
					w.vgpus[v.MDev] = "by hand"
				}
				if _, err := w.preparer().Prepare(w.context(), first.claim("first")); err != nil {
					t.Fatalf("%s: %v", first, err)
				}
				state := w.String()
				for _, second := range all {
					_, err := w.preparer().Prepare(w.context(), second.claim("second"))
					sameSlices := first.device.Name != second.device.Name || first.config == second.config
					room := leaves(left, first, second) && sameSlices
					refused := errors.Is(err, sharing.ErrInUse) || !sameSlices && errors.Is(err, sharing.ErrConflict)
					if room && err != nil || !room && !refused {
						t.Errorf("%s, then %s: got %v, want room: %t", first, second, err, room)
					}
					if err == nil {
						w.do("unprepare second")
					}
					if got := w.String(); got != state {
						t.Fatalf("%s, then %s: got\n%s\nwant\n%s", first, second, got, state)
					}
				}
			}
		})
	}
}
