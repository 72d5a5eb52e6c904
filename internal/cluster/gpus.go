// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// GPU is a physical GPU: its devices, and what claims hold of it.
type GPU struct {
	// These three are read of each GPU for each pod, so they are next to each other.
	Whole *Device // nil: only partitions, or the device for virtual machines, are published
	use   Use
	open  bool // it is published, and no taint keeps new claims away

	Node       string    // if only partitions are published, the pool, which has the name of the node
	Pool, Name string    // the name of the whole GPU, also if that is not published
	VM         *Device   // the GPU for virtual machines; nil: they cannot have it
	Partitions []*Device // that exist, or that the driver would create
	Held       []Held    // in no order

	counted *DeviceKind // the kind that counts the GPU as idle, or as one of some; nil: none
	idleOn  string      // the node where it is idle
	layout  *Layout     // nil: it has no possible partitions
	place   []string    // of placeOf, also while the whole GPU is not published; nil: not known
}

// unpublished reports whether nothing of the GPU is published.
func (g *GPU) unpublished() bool { return g.Whole == nil && g.VM == nil && len(g.Partitions) == 0 }

// Held is an allocated device of a GPU: the whole, or a partition.
type Held struct {
	Claim *Claim
	*resourceapi.DeviceRequestAllocationResult
}

// consumed returns how much of a capacity is held; 0 if the device does not allow multiple allocations.
func (h Held) consumed(name resourceapi.QualifiedName) int64 {
	q := h.ConsumedCapacity[name]
	return q.Value()
}

// Holding is an allocated device: bytes of memory, and percent of the GPU's multiprocessors, rounded down.
type Holding struct {
	Held
	Profile       string // of a partition, as published; if its kind was never published, as in its name
	Memory, Cores int64
}

// GPUs iterates over the GPUs of which something is published, and what claims hold of each, in no order. The holdings
// are valid until the next GPU. yield must not call the view.
func (v *View) GPUs(yield func(*GPU, []Holding) bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var held []Holding // reused, because there are thousands of GPUs
	for _, g := range v.gpus {
		if g.unpublished() {
			continue
		}
		held = held[:0]
		for _, h := range g.Held {
			held = append(held, v.holding(h, g))
		}
		if !yield(g, held) {
			return
		}
	}
}

// holding returns how much of the GPU is held: 0 for a partition whose kind was never published. Of an unlimited GPU it
// is what the claim asked for, which may be nothing.
func (v *View) holding(h Held, g *GPU) Holding {
	all, multiprocessors := g.size()
	holding := Holding{Held: h, Memory: h.consumed("memory"), Cores: h.consumed("cores")}
	if gpu.IsPart(h.Device) {
		holding.Profile = gpu.PartitionProfile(h.Device)
		if k := v.partitions[partitionKind{g.Product(), holding.Profile}]; k != nil {
			holding.Profile, holding.Memory = k.Profile(), k.Capacity("memory")
			if multiprocessors > 0 {
				holding.Cores = 100 * k.multiprocessors() / multiprocessors
			}
		}
		return holding
	}
	if g.Whole != nil {
		n, of := h.consumed("shares"), g.Whole.Kind.Capacity("shares")
		switch {
		case g.Whole.Kind.Sharing() == gpu.Unlimited.String() && len(h.ConsumedCapacity) > 0:
			return holding
		case n > 0 && of > 0:
			holding.Memory, holding.Cores = all/of*n, 100*n/of
			return holding
		}
	}
	if holding.Memory <= 0 || holding.Memory >= all {
		holding.Memory, holding.Cores = all, 100 // without free memory, free cores cannot be allocated
	}
	return holding
}

// Used adds up what is held of the GPU. It returns at most everything: partitions that share memory each count it.
func (g *GPU) Used(held []Holding) (memory, cores int64) {
	for _, h := range held {
		memory, cores = memory+h.Memory, cores+h.Cores
	}
	return min(memory, g.Memory()), min(cores, 100)
}

// Product returns the model, as NVML names it.
func (g *GPU) Product() string {
	return g.largest().Kind.Product()
}

// Memory returns the memory in bytes. If only partitions of the GPU are published, it is the sum of the existing ones,
// or the memory of the largest possible one. It is 0 if the GPU was given to a driver for virtual machines before
// anybody could ask.
func (g *GPU) Memory() int64 {
	memory, _ := g.size()
	return memory
}

func (g *GPU) size() (memory, multiprocessors int64) {
	if g.Whole != nil {
		return g.Whole.Kind.Capacity("memory"), g.Whole.Kind.multiprocessors()
	}
	if len(g.Partitions) == 0 && g.VM != nil {
		return g.VM.Kind.Capacity("memory"), g.VM.Kind.multiprocessors()
	}
	for _, p := range g.Partitions {
		m, n := p.Kind.Capacity("memory"), p.Kind.multiprocessors()
		if p.Exists() {
			memory, multiprocessors = memory+m, multiprocessors+n
		} else {
			memory, multiprocessors = max(memory, m), max(multiprocessors, n)
		}
	}
	return memory, multiprocessors
}

// Admits reports whether no taint keeps a new pod with these tolerations from the GPU, or from its largest partition if
// only partitions are published.
func (g *GPU) Admits(tolerations []resourceapi.DeviceToleration) bool {
	return g.largest().Admits(tolerations)
}

// AdmitsPart reports the same of a possible partition of the GPU. One that SlimSlice has dropped has no taints of its
// own, and those that rules give the GPU.
func (g *GPU) AdmitsPart(name string, tolerations []resourceapi.DeviceToleration) bool {
	if i := slices.IndexFunc(g.Partitions, func(p *Device) bool { return p.Name == name }); i >= 0 {
		return g.Partitions[i].Admits(tolerations)
	}
	d := g.largest()
	if d.against == nil {
		return true
	}
	own := 0
	for _, t := range d.Taints {
		if Prevents(t) {
			own++
		}
	}
	return len(Untolerated((*d.against)[:len(*d.against)-own], tolerations)) == 0 // those of rules come first
}

// Against returns the taints that keep new claims from the GPU, or from its largest partition.
func (g *GPU) Against() []resourceapi.DeviceTaint { return ptr.Deref(g.largest().against, nil) }

// Kept reports whether the GPU is tainted only because it is kept for somebody.
func (g *GPU) Kept() bool {
	taints := g.Against()
	return taints != nil && !slices.ContainsFunc(taints, func(t resourceapi.DeviceTaint) bool { return !Keeps(t) })
}

// largest returns the whole GPU, or what is published instead: its largest partition, or else the device for virtual
// machines.
func (g *GPU) largest() *Device {
	d := g.Whole
	switch {
	case d != nil:
	case len(g.Partitions) == 0:
		d = g.VM
	default:
		d = slices.MaxFunc(g.Partitions, func(a, b *Device) int {
			return cmp.Compare(a.Kind.Capacity("memory"), b.Kind.Capacity("memory"))
		})
	}
	return d
}

// Models returns how many GPUs of each model are published.
func (v *View) Models() map[string]int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	all := map[string]int{}
	for _, g := range v.gpus {
		if !g.unpublished() {
			all[g.Product()]++
		}
	}
	return all
}

// Device returns a whole GPU as a device, without its name. It is empty if that is not published.
func (v *View) Device(pool, name string) *resourceapi.Device {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if g := v.gpus[gpuID{pool, name}]; g != nil && g.Whole != nil {
		return &g.Whole.Kind.Device
	}
	return &resourceapi.Device{}
}
