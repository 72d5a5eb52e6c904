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

// counterSetsPerSlice is the API's limit.
const counterSetsPerSlice = resourceapi.ResourceSliceMaxCounterSets

// engine is a resource of a partition, published as a counter of its GPU and as a capacity.
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

// counters are the amounts by counter name.
type counters map[string]resourceapi.Counter

func (c counters) add(name string, n int) {
	if n > 0 {
		c[name] = resourceapi.Counter{Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}
	}
}

// memoryCounter is what a GPU and its partitions have of the memory, as their capacity. NVIDIA's driver has it, too,
// and others count by it; which partitions fit beside each other, the memory slices say.
const memoryCounter = "memory"

// MemorySlice is what the name of the counter of a memory slice begins with.
const MemorySlice = "memory-slice-"

// wholeCounter is the only counter of a GPU that has no partitions and that virtual machines can have.
const wholeCounter = "gpu"

// countersOf returns the counters of each GPU that claims can have in several shapes, by the GPU's name: with dynamic
// partitions, or also for virtual machines, or as vGPUs. All its devices consume them, which excludes overlapping ones.
// Other GPUs have no counters.
func countersOf(inv Inventory) map[string]counters {
	partitions := map[string][]gpu.Partition{}
	for _, d := range inv {
		if IsPossible(d) {
			name := gpu.ParentName(d.Name)
			partitions[name] = append(partitions[name], *d.Partition)
		}
	}
	all := map[string]counters{}
	for _, d := range inv {
		if d.Type == gpu.TypeVFIO && !d.VFIO.External() {
			c := counters{}
			c.add(wholeCounter, 1)
			all[gpu.ParentName(d.Name)] = c
		}
	}
	for name, of := range partitions {
		whole, _ := inv.Find(name) // none while only its partitions are offered
		all[name] = totals(Memory(whole), of)
	}
	addFrameBuffer(inv, all)
	return all
}

// totals returns the counters of a GPU with this memory and these possible partitions: each memory slice once, and the
// most engines and memory that partitions can have together.
func totals(memory uint64, partitions []gpu.Partition) counters {
	together := most(partitions, func(p gpu.Partition) int { return int(p.Memory / memoryUnit) })
	c := counters{memoryCounter: bytesCounter(max(memory, uint64(together)*memoryUnit))}
	for _, p := range partitions {
		takeSlices(c, p)
	}
	for _, e := range engines {
		c.add(e.counter, most(partitions, func(p gpu.Partition) int { return e.of(p.Engines) }))
	}
	return c
}

// most returns the most of something that partitions can have at the same time, limited by memory slices.
// Profiles with a "+" ("1g.10gb+me") do not add to it, because NVIDIA allows only one or few of them; a single one must
// fit.
func most(partitions []gpu.Partition, of func(gpu.Partition) int) int {
	end, one := 0, 0
	for _, p := range partitions {
		end, one = max(end, p.Start+p.Size), max(one, of(p))
	}
	first := make([]int, end+1) // first[n] is for the first n memory slices
	for n := 1; n <= end; n++ {
		first[n] = first[n-1]
		for _, p := range partitions {
			if p.Start+p.Size == n && !strings.Contains(p.Profile, "+") {
				first[n] = max(first[n], first[p.Start]+of(p))
			}
		}
	}
	return max(one, first[end])
}

func takeSlices(c counters, p gpu.Partition) {
	for n := range p.Size {
		c.add(fmt.Sprintf("%s%d", MemorySlice, p.Start+n), 1)
	}
}

// consumed returns what the device consumes of its GPU's counters: a partition its own resources, a vGPU its frame
// buffer, the whole GPU all.
func consumed(d gpu.Device, all counters) counters {
	if d.VGPU != nil {
		return counters{frameBuffer: bytesCounter(d.VGPU.Type.Memory)}
	}
	if d.Partition == nil {
		return all
	}
	c := counters{memoryCounter: bytesCounter(Memory(d))}
	takeSlices(c, *d.Partition)
	for _, e := range engines {
		c.add(e.counter, e.of(d.Partition.Engines))
	}
	return c
}

// Beside reports whether the counters of a GPU allow these two devices of it at once.
func (inv Inventory) Beside(one, other string) bool {
	all := countersOf(inv)
	var used []resourceapi.DeviceCounterConsumption
	for _, d := range inv {
		if d.Name == one || d.Name == other {
			used = append(used, publish(d, all).ConsumesCounters...)
		}
	}
	for name, left := range all[gpu.ParentName(one)] {
		for _, c := range used {
			left.Value.Sub(c.Counters[name].Value)
		}
		if left.Value.Sign() < 0 {
			return false
		}
	}
	return true
}

// counterSets returns the counters as API objects, in the order of the GPUs' names.
func counterSets(all map[string]counters) []resourceapi.CounterSet {
	var sets []resourceapi.CounterSet
	for _, name := range slices.Sorted(maps.Keys(all)) {
		sets = append(sets, resourceapi.CounterSet{Name: name, Counters: all[name]})
	}
	return sets
}
