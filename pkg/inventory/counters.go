// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// counterSetsPerSlice is the limit of the API.
const counterSetsPerSlice = resourceapi.ResourceSliceMaxCounterSets

// engine is something that a partition has to itself, as a counter of its GPU and as a capacity.
type engine struct {
	counter  string
	capacity resourceapi.QualifiedName
	unit     string
	meaning  string
	of       func(gpu.Engines) int
}

var engines = []engine{
	{"multiprocessors", "multiprocessors", "multiprocessors", "streaming multiprocessors of the partition",
		func(e gpu.Engines) int { return e.Multiprocessors }},
	{"copy-engines", "copyEngines", "engines", "that copy memory while the multiprocessors compute",
		func(e gpu.Engines) int { return e.Copy }},
	{"decoders", "decoders", "engines", "for video (NVDEC)", func(e gpu.Engines) int { return e.Decoders }},
	{"encoders", "encoders", "engines", "for video (NVENC)", func(e gpu.Engines) int { return e.Encoders }},
	{"jpeg-engines", "jpegEngines", "engines", "that decode JPEG", func(e gpu.Engines) int { return e.JPEG }},
	{"ofa-engines", "ofaEngines", "engines", "for optical flow (OFA)", func(e gpu.Engines) int { return e.OFA }},
}

// counters are amounts by the names of their counters.
type counters map[string]resourceapi.Counter

func (c counters) add(name string, n int) {
	if n > 0 {
		c[name] = resourceapi.Counter{Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}
	}
}

// countersOf are what the GPUs that the driver partitions have to divide, by the GPU's name. They tie the partitions of a GPU to each
// other and to the whole. GPUs without partitions, or with such as somebody else makes, have none.
func countersOf(inv Inventory) map[string]counters {
	partitions := map[string][]gpu.Partition{}
	for _, d := range inv {
		if d.Partition != nil && !d.Partition.Static {
			name := gpu.ParentName(d.Name)
			partitions[name] = append(partitions[name], *d.Partition)
		}
	}
	all := map[string]counters{}
	for name, of := range partitions {
		all[name] = totals(of)
	}
	return all
}

// totals are what a GPU has that can have these partitions: each memory slice once, and of the engines what partitions can have at most
// together.
func totals(partitions []gpu.Partition) counters {
	c := counters{}
	for _, p := range partitions {
		takeSlices(c, p)
	}
	for _, e := range engines {
		c.add(e.counter, together(partitions, e.of))
	}
	return c
}

// together is the most engines of a kind that partitions can have at the same time, as far as the memory slices go. Profiles with a "+"
// have engines that NVIDIA gives only once or so ("1g.10gb+me"): they have to find them in what the others can have together, or in
// what one of their kind needs.
func together(partitions []gpu.Partition, of func(gpu.Engines) int) int {
	end, one := 0, 0
	for _, p := range partitions {
		end, one = max(end, p.Start+p.Size), max(one, of(p.Engines))
	}
	most := make([]int, end+1) // in so many of the first memory slices
	for n := 1; n <= end; n++ {
		most[n] = most[n-1]
		for _, p := range partitions {
			if p.Start+p.Size == n && !strings.Contains(p.Profile, "+") {
				most[n] = max(most[n], most[p.Start]+of(p.Engines))
			}
		}
	}
	return max(one, most[end])
}

func takeSlices(c counters, p gpu.Partition) {
	for n := range p.Size {
		c.add(fmt.Sprintf("memory-slice-%d", p.Start+n), 1)
	}
}

// taken is what the device takes of its GPU's counters: a partition what it has, the whole GPU all there is.
func taken(d gpu.Device, all counters) counters {
	if d.Partition == nil {
		return all
	}
	c := counters{}
	takeSlices(c, *d.Partition)
	for _, e := range engines {
		c.add(e.counter, e.of(d.Partition.Engines))
	}
	return c
}

// counterSets are the counters as slices publish them, in the order of the GPUs' names.
func counterSets(all map[string]counters) []resourceapi.CounterSet {
	var sets []resourceapi.CounterSet
	for _, name := range slices.Sorted(maps.Keys(all)) {
		sets = append(sets, resourceapi.CounterSet{Name: name, Counters: all[name]})
	}
	return sets
}
