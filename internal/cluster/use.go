// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Use is how much claims hold of a GPU. It is computed when that changes, because all GPUs of a cluster are compared
// for each pod.
type Use struct {
	// Consumed is what shares hold of each capacity, in the order of DeviceKind.Takes; nil: the GPU has no shares.
	Consumed []int64
	Parts    int64 // thousandths of the memory that partitions hold
	Whole    bool  // a claim holds all of it
	shared   bool  // it is shared, and nobody holds all of it or a partition
}

// Whole is all of a GPU, in thousandths.
const Whole = 1000

// Unused returns the use of the GPU while no claim holds any of it.
func (g *GPU) Unused() Use {
	if g.Whole == nil || !g.Whole.Kind.Shared() {
		return Use{}
	}
	return Use{Consumed: make([]int64, len(g.Whole.Kind.policies))}
}

// measure computes the use of the GPU. The caller holds v.mu.
func (v *View) measure(g *GPU) {
	var k *DeviceKind
	g.use = g.Unused()
	if g.use.Consumed != nil {
		k = g.Whole.Kind
	}
	var memory int64
	all := g.published()
	for _, h := range g.Held {
		switch {
		case gpu.IsPart(h.Device):
			g.use.Parts = 1 // of unknown size
			if all > 0 {
				memory += v.holding(h, g).Memory
			}
		case k == nil || len(h.ConsumedCapacity) == 0:
			g.use.Whole = true
		default:
			for i, p := range k.policies {
				g.use.Consumed[i] += h.consumed(p.name)
			}
		}
	}
	if memory > 0 {
		g.use.Parts = min(Whole, max(1, memory*Whole/all))
	}
	g.use.shared = k != nil && !g.use.Whole && g.use.Parts == 0
	g.open = !g.unpublished() && g.Admits(nil)
}

// published returns the memory of the GPU in bytes; 0: nothing of it is published.
func (g *GPU) published() int64 {
	if g.unpublished() {
		return 0
	}
	return g.Memory()
}

// Use returns how much claims hold of the GPU.
func (g *GPU) Use() Use { return g.use }

// Idle returns how many thousandths of the GPU new claims with these tolerations can get: none if a taint keeps them
// away. Of a shared GPU it is what is left of the scarcest capacity.
func (g *GPU) Idle(u Use, tolerations []resourceapi.DeviceToleration) int64 {
	if u.Whole || !g.open && (g.unpublished() || !g.Admits(tolerations)) {
		return 0
	}
	idle := Whole - u.Parts
	if g.Whole != nil && len(u.Consumed) > 0 {
		idle -= g.Whole.Kind.Share(u.Consumed)
	}
	return max(0, idle)
}

// Takes returns how much a request for these capacities takes of each capacity of a shared GPU, in bytes or in what
// else the capacity counts; nil: the request takes all of the GPU.
func (k *DeviceKind) Takes(asked map[resourceapi.QualifiedName]resource.Quantity) []int64 {
	if !k.Shared() {
		return nil
	}
	all := make([]int64, len(k.policies))
	for i, p := range k.policies {
		all[i] = p.takes(asked)
	}
	return all
}

// Share returns the largest fraction of a capacity that is taken, in thousandths, rounded up. taken is as Takes returns
// it.
func (k *DeviceKind) Share(taken []int64) int64 {
	most := int64(0)
	for i, p := range k.policies {
		if p.size > 0 && taken[i] > 0 {
			fraction := float64(taken[i]) / float64(p.size) * Whole
			up := int64(fraction)
			if float64(up) < fraction {
				up++
			}
			most = max(most, min(Whole, up))
		}
	}
	return most
}

// Room reports whether the whole GPU, used as u says, can serve another request that takes as much.
func (k *DeviceKind) Room(u Use, takes []int64) bool {
	if u.Whole || u.Parts > 0 {
		return false
	}
	if takes == nil || len(u.Consumed) != len(takes) {
		return !slices.ContainsFunc(u.Consumed, func(n int64) bool { return n > 0 })
	}
	for i, p := range k.policies {
		if u.Consumed[i]+takes[i] > p.size {
			return false
		}
	}
	return true
}
