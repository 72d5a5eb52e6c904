// SPDX-License-Identifier: Apache-2.0

package view

import (
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// partitionKind finds a partition that a claim holds, which need not be published any more.
type partitionKind struct{ product, profile string }

// Physical is a physical GPU, and what claims hold of it.
type Physical struct {
	Node, Product string
	// Memory is in bytes. Of a GPU of which only partitions are published, it is that of those somebody has made, or that of the largest
	// that is possible.
	Memory  int64
	Tainted bool      // new pods are kept away; of a GPU of which only partitions are published: from the largest
	Held    []Holding // until the next GPU

	multiprocessors int64 // that Memory goes with
}

// Holding is a device that a claim holds: bytes of memory, and percent of the multiprocessors of its GPU, rounded down.
type Holding struct {
	Claim         *Claim
	Memory, Cores int64
}

// Physicals are all physical GPUs of which something is published, in no order, until yield returns false. It must not ask the view.
func (v *View) Physicals(yield func(*Physical) bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var held []Holding // one list for all: there are thousands of GPUs
	for at, g := range v.gpus {
		p := Physical{Node: g.Node, Product: g.Kind.Product(), Memory: g.Kind.Capacity("memory"), Tainted: g.Tainted,
			multiprocessors: g.Kind.multiprocessors()}
		held = v.holdings(held[:0], at, &p, g.Kind)
		p.Held = held
		if !yield(&p) {
			return
		}
	}
	for at, p := range v.divided() {
		held = v.holdings(held[:0], at, p, nil)
		p.Held = held
		if !yield(p) {
			return
		}
	}
}

// divided are the GPUs of which only partitions are published: in MIG mode, and the driver cannot end it.
func (v *View) divided() map[id]*Physical {
	all := map[id]*Physical{}
	largest := map[id]int64{}
	for _, devices := range v.slices {
		for _, d := range devices {
			if d.kind.Type() != gpu.TypeMIG || v.gpus[d.id] != nil {
				continue
			}
			p := all[d.id]
			if p == nil {
				p = &Physical{Node: d.id.pool, Product: d.kind.Product()} // a node is the pool of that name
				all[d.id] = p
			}
			memory, multiprocessors := d.kind.Capacity("memory"), d.kind.multiprocessors()
			if memory >= largest[d.id] {
				largest[d.id], p.Tainted = memory, d.tainted
			}
			if d.static {
				p.Memory += memory
				p.multiprocessors += multiprocessors
			} else {
				p.Memory = max(p.Memory, memory)
				p.multiprocessors = max(p.multiprocessors, multiprocessors)
			}
		}
	}
	return all
}

// holdings adds what claims hold of the GPU. kind is nil when it is not published as a whole.
func (v *View) holdings(all []Holding, at id, p *Physical, kind *Kind) []Holding {
	for c := range v.held[at] {
		for _, h := range c.Held {
			if h.gpu() != at {
				continue
			}
			memory, cores := v.part(h, p, kind)
			all = append(all, Holding{c, memory, cores})
		}
	}
	return all
}

// part is how much of the GPU is held. Of a partition that was never seen nothing is known.
func (v *View) part(h Held, p *Physical, kind *Kind) (memory, cores int64) {
	if gpu.IsPartition(h.Device) {
		k := v.partitions[partitionKind{p.Product, gpu.PartitionProfile(h.Device)}]
		if k == nil {
			return 0, 0
		}
		if p.multiprocessors > 0 {
			cores = 100 * k.multiprocessors() / p.multiprocessors
		}
		return k.Capacity("memory"), cores
	}
	switch taken := h.Consumed["memory"]; {
	case h.Consumed["shares"] > 0 && kind != nil && kind.Capacity("shares") > 0:
		n, of := h.Consumed["shares"], kind.Capacity("shares")
		return p.Memory / of * n, 100 * n / of
	case taken > 0 && taken < p.Memory:
		return taken, h.Consumed["cores"]
	}
	return p.Memory, 100 // with all of the memory nobody else can have anything, whatever is said of cores
}

func (k *Kind) multiprocessors() int64 {
	return ptr.Deref(k.Device.Attributes["multiprocessors"].IntValue, 0)
}
