// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// GPU is a whole GPU that is published, and the claims on it.
type GPU struct {
	Node, Name string
	Kind       *Kind
	Tainted    bool // for new pods
	// Holders are the claims that hold the GPU, a share or a partition of it.
	Holders []*Claim

	pool, slice string
	use         use
}

// GPUs iterates over all published whole GPUs, in no order.
func (v *View) GPUs(yield func(GPU) bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for at, g := range v.gpus {
		found := *g
		found.Holders = slices.Collect(maps.Keys(v.held[at]))
		if !yield(found) {
			return
		}
	}
}

// Device returns a whole GPU as a device, without its name. It is empty if that is not published.
func (v *View) Device(pool, name string) *resourceapi.Device {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if g := v.gpus[id{pool, name}]; g != nil {
		return &g.Kind.Device
	}
	return &resourceapi.Device{}
}

// GPUsOfNodes returns how many GPUs of each kind nodes have, each combination once.
func (v *View) GPUsOfNodes() []map[*Kind]int64 {
	v.mu.RLock()
	nodes := map[string]map[*Kind]int64{}
	for at, g := range v.gpus {
		node := cmp.Or(g.Node, at.pool)
		if nodes[node] == nil {
			nodes[node] = map[*Kind]int64{}
		}
		nodes[node][g.Kind]++
	}
	v.mu.RUnlock()
	var all []map[*Kind]int64
	known := map[string]bool{}
	for _, kinds := range nodes {
		text := ""
		for _, k := range slices.SortedFunc(maps.Keys(kinds), func(a, b *Kind) int { return cmp.Compare(a.ID, b.ID) }) {
			text += fmt.Sprintf("%s%d ", k.ID, kinds[k])
		}
		if !known[text] {
			known[text] = true
			all = append(all, kinds)
		}
	}
	return all
}

// Parts returns what the claim holds of the GPU.
func (g *GPU) Parts(c *Claim) []Held {
	return slices.DeleteFunc(slices.Clone(c.Held), func(h Held) bool { return h.gpu() != id{g.pool, g.Name} })
}

// Fits reports whether the GPU can serve another request for these capacities now.
func (g *GPU) Fits(asked map[resourceapi.QualifiedName]resource.Quantity) bool {
	if g.Tainted {
		return false
	}
	consumed, shared := g.consumed()
	if !shared || !g.Kind.Has(asked) {
		return false
	}
	if !ptr.Deref(g.Kind.Device.AllowMultipleAllocations, false) {
		return len(g.Holders) == 0
	}
	for name, capacity := range g.Kind.Device.Capacity {
		policy := capacity.RequestPolicy
		if policy == nil || policy.Default == nil {
			continue
		}
		want := policy.Default.Value()
		if q, ok := asked[name]; ok {
			want = q.Value()
		}
		if consumed[name]+want > g.Kind.Capacity(name) {
			return false
		}
	}
	return true
}
