// SPDX-License-Identifier: Apache-2.0

package view

import (
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// partitionKind finds the kind of an allocated partition, which may no longer be published.
type partitionKind struct{ product, profile string }

// Physical is a physical GPU, and what claims hold of it.
type Physical struct {
	Node, Product string
	Pool, Name    string // of the whole GPU, also if only partitions are published
	// Memory is in bytes. If only partitions of the GPU are published, it is the sum of the existing ones, or the
	// memory of the largest possible one.
	Memory  int64
	Tainted bool      // for new pods; if only partitions are published, whether the largest one is
	Held    []Holding // valid only until the next GPU

	multiprocessors int64 // of the same partitions as Memory
}

// Holding is an allocated device: bytes of memory, and percent of the GPU's multiprocessors, rounded down.
type Holding struct {
	Claim         *Claim
	Device        string
	Memory, Cores int64
}

// Physicals iterates over all physical GPUs with published devices, in no order. yield must not call the view.
func (v *View) Physicals(yield func(*Physical) bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var held []Holding // reused, because there are thousands of GPUs
	for at, g := range v.gpus {
		p := Physical{Node: g.Node, Pool: at.pool, Name: at.gpu, Product: g.Kind.Product(),
			Memory: g.Kind.Capacity("memory"), Tainted: g.Tainted, multiprocessors: g.Kind.multiprocessors()}
		held = v.holdings(held[:0], at, &p, g.Kind)
		p.Held = held
		if !yield(&p) {
			return
		}
	}
	for at, p := range v.migOnlyGPUs() {
		held = v.holdings(held[:0], at, p, nil)
		p.Held = held
		if !yield(p) {
			return
		}
	}
}

// migOnlyGPUs returns the GPUs of which only partitions are published: they are in MIG mode, and the driver cannot
// disable it.
func (v *View) migOnlyGPUs() map[id]*Physical {
	all := map[id]*Physical{}
	largest := map[id]int64{}
	for _, devices := range v.slices {
		for _, d := range devices {
			if d.kind.Type() != gpu.TypeMIG || v.gpus[d.id] != nil {
				continue
			}
			p := all[d.id]
			if p == nil {
				// The pool has the name of the node.
				p = &Physical{Node: d.id.pool, Pool: d.id.pool, Name: d.id.gpu, Product: d.kind.Product()}
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

// holdings appends what claims hold of the GPU. kind is nil if the GPU is not published as a whole.
func (v *View) holdings(all []Holding, at id, p *Physical, kind *Kind) []Holding {
	for c := range v.held[at] {
		for _, h := range c.Held {
			if h.gpu() != at {
				continue
			}
			memory, cores := v.part(h, p, kind)
			all = append(all, Holding{c, h.Device, memory, cores})
		}
	}
	return all
}

// part returns how much of the GPU is held: 0 for a partition whose kind was never published. Of an unlimited GPU it
// is what the claim asked for, which may be nothing.
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
	case kind != nil && kind.Sharing() == gpu.Unlimited.String() && h.Consumed != nil:
		return taken, h.Consumed["cores"]
	case h.Consumed["shares"] > 0 && kind != nil && kind.Capacity("shares") > 0:
		n, of := h.Consumed["shares"], kind.Capacity("shares")
		return p.Memory / of * n, 100 * n / of
	case taken > 0 && taken < p.Memory:
		return taken, h.Consumed["cores"]
	}
	return p.Memory, 100 // without free memory, free cores cannot be allocated
}

func (k *Kind) multiprocessors() int64 {
	return ptr.Deref(k.Device.Attributes["multiprocessors"].IntValue, 0)
}
