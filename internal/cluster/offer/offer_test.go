// SPDX-License-Identifier: Apache-2.0

package offer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"

	compare "github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

const driver = "gpu.example.com"

// published returns what a node with these GPUs publishes: with all possible partitions, or with those of one
// GPU of each model.
func published(node string, gpus []gpu.Device, all bool) []*resourceapi.ResourceSlice {
	inv := inventory.Unclaimed(gpus, func(d gpu.Device) gpu.SharingMode {
		if d.MIG.Switchable && !all {
			return gpu.SharingMode{Partitions: gpu.PartitionsOnDemand}
		}
		return gpu.SharingMode{}
	})
	slices := inventory.Slices(driver, node, inv.Pools(node))
	for i, s := range slices {
		s.Name = fmt.Sprint(node, i)
	}
	return slices
}

// contents are the devices and counter sets of slices, by name, without the order of the slices.
func contents(all []*resourceapi.ResourceSlice) (devices []resourceapi.Device, counters []resourceapi.CounterSet) {
	for _, s := range all {
		devices = append(devices, s.Spec.Devices...)
		counters = append(counters, s.Spec.SharedCounters...)
	}
	for i := range devices {
		devices[i].Attributes = maps.Clone(devices[i].Attributes)
		delete(devices[i].Attributes, "partitionsOnDemand") // the only difference
	}
	slices.SortFunc(devices, func(a, b resourceapi.Device) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(counters, func(a, b resourceapi.CounterSet) int { return cmp.Compare(a.Name, b.Name) })
	return devices, counters
}

func TestAllIsWhatNodesWouldPublish(t *testing.T) {
	for _, profile := range []string{"dgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl4", "rtxpro6000-x2"} {
		t.Run(profile, func(t *testing.T) {
			gpus := simtest.Discover(t, profile)
			less, all := published("node", gpus, false), published("node", gpus, true)
			before, _ := contents(less)
			got := All(less, nil)
			for _, s := range got {
				if want := len(pool(got, s.Spec.Pool.Name)); int(s.Spec.Pool.ResourceSliceCount) != want {
					t.Errorf("slice %s says that its pool has %d slices, there are %d", s.Name,
						s.Spec.Pool.ResourceSliceCount, want)
				}
			}
			devices, counters := contents(got)
			wantDevices, wantCounters := contents(all)
			if len(before) >= len(devices) {
				t.Errorf("there were %d devices and are %d: this shows nothing", len(before), len(devices))
			}
			if profile == "dgx-h100" && (len(before) != 34 || len(devices) != 209) {
				t.Errorf("there were %d devices and are %d; docs/operate/node-configuration.md has 34 and 209",
					len(before), len(devices))
			}
			if diff := compare.Diff(wantDevices, devices); diff != "" {
				t.Error(diff)
			}
			if diff := compare.Diff(wantCounters, counters); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// pool returns the slices of the pool.
func pool(all []*resourceapi.ResourceSlice, name string) []*resourceapi.ResourceSlice {
	return slices.DeleteFunc(slices.Clone(all),
		func(s *resourceapi.ResourceSlice) bool { return s.Spec.Pool.Name != name })
}

// Slices of another driver may have any form, and those of a pool that is being written are not all there. Neither is
// an example for other GPUs, and both stay as they are.
func TestNoExampleForOthers(t *testing.T) {
	gpus := simtest.Discover(t, "dgx-h100")
	full := pool(published("full", gpus, true), "full")
	foreign := pool(published("foreign", gpus, true), "foreign")
	foreign = slices.DeleteFunc(foreign, func(s *resourceapi.ResourceSlice) bool {
		return len(s.Spec.SharedCounters) > 0
	})
	for _, s := range foreign {
		s.Spec.Driver, s.Spec.Pool.ResourceSliceCount = "gpu.example.org", int64(len(foreign))
		for i := range s.Spec.Devices {
			if !isPossible(&s.Spec.Devices[i]) {
				s.Spec.Devices[i].ConsumesCounters = nil
			}
		}
	}
	held := pool(published("held", gpus, false), "held")
	held = slices.DeleteFunc(held, func(s *resourceapi.ResourceSlice) bool {
		return len(s.Spec.SharedCounters) > 0 || len(s.Spec.Devices) > 0 && isPossible(&s.Spec.Devices[0])
	})
	for _, s := range held {
		s.Spec.Pool.ResourceSliceCount = int64(len(held))
		for i := range s.Spec.Devices {
			s.Spec.Devices[i].ConsumesCounters = nil // as while all of its GPUs are held as a whole
		}
	}
	for _, row := range []struct {
		name  string
		given []*resourceapi.ResourceSlice
		more  bool
	}{
		{"nobody has partitions", nil, false},
		{"another driver has", foreign, false},
		{"a pool without its counters has", full[:len(full)-1], false},
		{"a pool has", full, true},
	} {
		given := slices.Concat(row.given, held)
		if got := All(given, nil); len(got) > len(given) != row.more {
			t.Errorf("%s: of %d slices were made %d, want more: %v", row.name, len(given), len(got), row.more)
		}
	}
}
