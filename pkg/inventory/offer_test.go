// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

func TestOffer(t *testing.T) {
	const model = "H100-80GB"
	for _, row := range []struct {
		name   string
		uses   string // of each GPU: free, whole, parts
		before string // the numbers of GPUs
		change func([]gpu.Device)
		want   string
	}{
		{"the last unused one", "ffff", "", nil, "3"},
		{"not one that is held", "fffw", "", nil, "2"},
		{"one that is used in parts, and one more", "fffp", "", nil, "2 3"},
		{"as many more as are used in parts", "fffpp", "", nil, "1 2 3 4"},
		{"used in parts, and no other is free", "wwwp", "", nil, "3"},
		{"none if all are held", "wwww", "", nil, ""},
		{"one that was offered stays, and is enough", "ffff", "1", nil, "1"},
		{"all that were offered stay", "ffff", "0 1", nil, "0 1"},
		{"one that was offered and is held does not count", "fwff", "1", nil, "1 3"},
		{"not a sick one", "ffff", "", func(all []gpu.Device) {
			all[3].Taints = []gpu.Taint{{Key: inventory.TaintXID, Effect: "NoSchedule"}}
		}, "2"},
		{"a sick one if all are", "wwff", "", func(all []gpu.Device) {
			for i := range all {
				all[i].Taints = []gpu.Taint{{Key: inventory.TaintXID, Effect: "NoSchedule"}}
			}
		}, "3"},
		{"one whose taint keeps nobody away", "ffff", "", func(all []gpu.Device) {
			all[3].Taints = []gpu.Taint{{Key: inventory.TaintUnmonitored, Effect: "None"}}
		}, "3"},
		{"one of each model", "ffff", "", func(all []gpu.Device) {
			all[2].Product.Name, all[3].Product.Name = "another", "another"
		}, "1 3"},
		{"used in parts: one more of the same model", "ffpf", "", func(all []gpu.Device) {
			all[2].Product.Name, all[3].Product.Name = "another", "another"
		}, "1 2 3"},
		{"all, as the administrator wants", "wwff", "", func(all []gpu.Device) {
			for i := range all {
				all[i].Use.OnDemand = false
			}
		}, "0 1 2 3"},
		{"those that are not published as a whole", "wwff", "", func(all []gpu.Device) {
			all[0].MIG.Enabled, all[0].MIG.Switchable = true, false
		}, "0 3"},
		{"none without partitions", "ffff", "", func(all []gpu.Device) {
			for i := range all {
				all[i].Use.Partitions = gpu.PartitionsNone
			}
		}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			gpus := partitionable(model, len(row.uses))
			for i := range gpus {
				gpus[i].Use.OnDemand = true
			}
			if row.change != nil {
				row.change(gpus)
			}
			at := map[string]int{}
			for i, d := range gpus {
				at[d.Name] = i
			}
			use := func(name string) inventory.Use {
				return map[byte]inventory.Use{'f': inventory.Unused, 'w': inventory.UsedWhole,
					'p': inventory.UsedInParts}[row.uses[at[name]]]
			}
			before := func(name string) bool {
				return slices.Contains(strings.Fields(row.before), fmt.Sprint(at[name]))
			}
			inv := inventory.New(gpus).WithPartitions(func(gpu.Placement) bool { return false })
			offered := inv.Offer(use, before)
			var got []string
			for _, name := range slices.Sorted(maps.Keys(offered)) {
				got = append(got, fmt.Sprint(at[name]))
			}
			if strings.Join(got, " ") != row.want {
				t.Errorf("got %v, want %s", got, row.want)
			}
			for _, s := range inventory.Slices("driver", "node", inv.Only(offered).Pools("node")) {
				for _, d := range s.Spec.Devices {
					if name := gpu.ParentName(d.Name); len(d.ConsumesCounters) > 0 != offered[name] {
						t.Errorf("%s consumes %d counters, GPU offered: %v", d.Name, len(d.ConsumesCounters),
							offered[name])
					}
				}
				for _, set := range s.Spec.SharedCounters {
					if !offered[set.Name] {
						t.Errorf("there are counters of %s", set.Name)
					}
				}
			}
		})
	}
}
