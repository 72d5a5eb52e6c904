// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	"math"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// TestUtilization: Cluster Autoscaler's utilization of a node is the number of GPUs in use divided by all, whether
// claims have whole GPUs, shares or partitions. It requires that all GPUs are alike, and so does this test.
func TestUtilization(t *testing.T) {
	tested := map[string]int{}
	for _, profile := range Profiles() {
		for name, config := range configs {
			pools := map[string][]*resourceapi.ResourceSlice{}
			for _, s := range fromProfile(t, profile, config).Slices {
				pools[s.Spec.Pool.Name] = append(pools[s.Spec.Pool.Name], s)
			}
			if len(pools) != 2 || len(devicesOf(pools[inventory.MonitorPool(as.Name)])) != 1 {
				t.Fatalf("%s, %s: got pools %v, want one of GPUs and one of the monitor", profile, name, pools)
			}
			pool := pools[as.Name]
			gpus, partitions := split(devicesOf(pool))
			if !alike(gpus) {
				continue
			}
			for used := range len(gpus) + 1 {
				want := float64(used) / float64(len(gpus))
				if got := utilization(pool, gpus[:used]); math.Abs(got-want) > 1e-9 {
					t.Errorf("%s, %s, %d GPUs: got %g, want %g", profile, name, used, got, want)
				}
			}
			tested["whole"]++
			for _, p := range partitions {
				want := 1 / float64(len(gpus))
				if got := utilization(pool, []resourceapi.Device{p}); math.Abs(got-want) > 1e-9 {
					t.Errorf("%s, %s, partition %s: got %g, want %g", profile, name, p.Name, got, want)
				}
				tested["partition"]++
			}
		}
	}
	if tested["whole"] < 50 || tested["partition"] < 1000 {
		t.Errorf("tested only %v", tested)
	}
}

// utilization returns what Cluster Autoscaler since 1.36 computes of a pool, as its docs/dra_support.md describes: of a
// pool with shared counters the average over all counter sets of their most used counter, of another the part of the
// devices that is allocated. A device counts once, however many claims share it.
func utilization(pool []*resourceapi.ResourceSlice, allocated []resourceapi.Device) float64 {
	sets, sum := 0, 0.0
	for _, s := range pool {
		for _, set := range s.Spec.SharedCounters {
			sets++
			most := 0.0
			for name, total := range set.Counters {
				consumed := int64(0)
				for _, d := range allocated {
					for _, c := range d.ConsumesCounters {
						if value, ok := c.Counters[name]; ok && c.CounterSet == set.Name {
							consumed += value.Value.Value()
						}
					}
				}
				most = max(most, float64(consumed)/float64(total.Value.Value()))
			}
			sum += most
		}
	}
	if sets > 0 {
		return sum / float64(sets)
	}
	return float64(len(allocated)) / float64(len(devicesOf(pool)))
}

func devicesOf(pool []*resourceapi.ResourceSlice) []resourceapi.Device {
	var all []resourceapi.Device
	for _, s := range pool {
		all = append(all, s.Spec.Devices...)
	}
	return all
}

func split(devices []resourceapi.Device) (gpus, partitions []resourceapi.Device) {
	for _, d := range devices {
		if gpu.IsPartition(d.Name) {
			partitions = append(partitions, d)
		} else {
			gpus = append(gpus, d)
		}
	}
	return gpus, partitions
}

// alike reports whether the GPUs are of one model.
func alike(gpus []resourceapi.Device) bool {
	model := func(d resourceapi.Device) string {
		memory := d.Capacity["memory"].Value
		return *d.Attributes["productName"].StringValue + memory.String()
	}
	return !slices.ContainsFunc(gpus, func(d resourceapi.Device) bool { return model(d) != model(gpus[0]) })
}
