// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// FuzzPlacements publishes a GPU with any table of MIG profiles: four bytes for each. Each partition fits alone.
// Partitions that overlap never fit together, and those that do not overlap always do.
func FuzzPlacements(f *testing.F) {
	f.Add([]byte{1, 1, 16, 0x7f, 2, 2, 32, 0x15, 4, 3, 60, 0x11, 4, 4, 64, 1, 8, 7, 132, 1}) // as an H100 has them
	f.Add([]byte{1, 1, 16, 0x0f, 2, 2, 32, 5, 4, 4, 64, 1})
	f.Add([]byte{1, 1, 0, 0, 0, 0, 0, 0xff})
	f.Add([]byte{3, 1, 16, 0xff, 2, 1, 255, 0xff, 8, 9, 1, 0xff})
	f.Fuzz(func(t *testing.T, table []byte) {
		d := partitionable("H100-80GB", 1)[0]
		d.MIG.Profiles = nil
		for i, row := range slices.Collect(slices.Chunk(table, 4)) {
			if len(row) < 4 || i == 6 {
				break
			}
			p := gpu.Profile{Name: fmt.Sprintf("%dg.%dgb", row[1]%10, i+1), Slices: int(row[1] % 10),
				Size: 1 + int(row[0]%8), Memory: 10 << 30, Engines: gpu.Engines{Multiprocessors: int(row[2]),
					Copy: int(row[2] % 3)}}
			for start := range 8 {
				if row[3]&(1<<start) != 0 {
					p.Starts = append(p.Starts, start)
				}
			}
			d.MIG.Profiles = append(d.MIG.Profiles, p)
		}
		inv := divided([]gpu.Device{d})
		all := inv.Pools(nodeName)[nodeName].Slices
		has, takes := map[string]int64{}, map[string]map[string]resourceapi.Counter{}
		for _, slice := range all {
			for _, set := range slice.SharedCounters {
				for name, c := range set.Counters {
					has[name] = c.Value.Value()
				}
			}
			for _, published := range slice.Devices {
				if _, twice := takes[published.Name]; twice {
					t.Fatalf("%s is published twice", published.Name)
				}
				takes[published.Name] = nil
				for _, c := range published.ConsumesCounters {
					takes[published.Name] = c.Counters
				}
			}
		}
		var partitions inventory.Inventory
		for _, one := range inv {
			if one.Partition == nil {
				continue
			}
			partitions = append(partitions, one)
			if parent := gpu.ParentName(one.Name); parent != d.Name {
				t.Errorf("%s is of %s, want %s", one.Name, parent, d.Name)
			}
			if got, want := gpu.PartitionProfile(one.Name), gpu.ProfileName(one.Partition.Profile); got != want {
				t.Errorf("%s has the profile %s, want %s", one.Name, got, want)
			}
			if !fit(has, takes, one) {
				t.Errorf("%s does not fit into %v", one.Name, has)
			}
			for _, other := range partitions[:len(partitions)-1] {
				if one.Partition.Overlaps(other.Partition.Placement) && fit(has, takes, one, other) {
					t.Errorf("%s and %s overlap, and the counters admit both", one.Name, other.Name)
				}
			}
		}
		for first := range partitions { // as many as there is place for, in the order in which they are published
			var chosen []gpu.Device
			for i := range partitions {
				next := partitions[(first+i)%len(partitions)]
				if !slices.ContainsFunc(chosen, func(c gpu.Device) bool {
					return c.Partition.Overlaps(next.Partition.Placement)
				}) {
					chosen = append(chosen, next)
				}
			}
			if !fit(has, takes, chosen...) {
				t.Errorf("%s do not overlap, and do not fit into %v", names(chosen), has)
			}
		}
	})
}

// fit reports whether the counters admit the devices together.
func fit(has map[string]int64, takes map[string]map[string]resourceapi.Counter, devices ...gpu.Device) bool {
	taken := map[string]int64{}
	for _, d := range devices {
		for name, c := range takes[d.Name] {
			taken[name] += c.Value.Value()
		}
	}
	for name, n := range taken {
		if n > has[name] {
			return false
		}
	}
	return true
}
