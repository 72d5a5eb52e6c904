// SPDX-License-Identifier: Apache-2.0

package view

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// room is the GPUs of one kind that new claims can get something of. It follows every change, because a claim for the
// strongest GPU must not count the GPUs of 5,000 nodes.
type room struct {
	idle  map[string]int64 // GPUs that no claim holds, by node
	nodes map[int64]int64  // nodes with that many idle GPUs
	used  map[id]*GPU      // GPUs that claims hold in part, so that others may have the rest
}

// use says in which part of a room a GPU is.
type use int

const (
	taken use = iota // or tainted
	idle
	inPart
)

// useOf returns the use of the GPU as of now.
func (v *View) useOf(at id, g *GPU) use {
	holders := v.held[at]
	switch {
	case g.Tainted:
		return taken
	case len(holders) == 0:
		return idle
	case !ptr.Deref(g.Kind.Device.AllowMultipleAllocations, false):
		return taken
	}
	found := *g
	found.Holders = slices.Collect(maps.Keys(holders))
	if consumed, shared := found.consumed(); !shared || !g.Kind.leaves(consumed) {
		return taken
	}
	return inPart
}

// enter puts the GPU into the room of its kind. The caller holds v.mu.
func (v *View) enter(at id) {
	g := v.gpus[at]
	if g == nil {
		return
	}
	g.use = v.useOf(at, g)
	r := v.rooms[g.Kind]
	if r == nil {
		r = &room{idle: map[string]int64{}, nodes: map[int64]int64{}, used: map[id]*GPU{}}
		v.rooms[g.Kind] = r
	}
	switch g.use {
	case idle:
		r.change(g.Node, 1)
	case inPart:
		r.used[at] = g
	case taken:
	}
}

// leave takes the GPU out of the room of its kind. The caller holds v.mu.
func (v *View) leave(at id) {
	g := v.gpus[at]
	if g == nil {
		return
	}
	switch r := v.rooms[g.Kind]; g.use {
	case idle:
		r.change(g.Node, -1)
	case inPart:
		delete(r.used, at)
	case taken:
	}
	g.use = taken
}

// change changes the number of idle GPUs of a node.
func (r *room) change(node string, by int64) {
	before := r.idle[node]
	after := before + by
	if r.nodes[before]--; r.nodes[before] <= 0 {
		delete(r.nodes, before)
	}
	if after == 0 {
		delete(r.idle, node)
		return
	}
	r.idle[node] = after
	r.nodes[after]++
}

// Room returns how many GPUs of the kind can now serve requests for count GPUs of one node with these capacities. It
// stops counting at enough.
func (v *View) Room(k *Kind, asked map[resourceapi.QualifiedName]resource.Quantity, count, enough int64) int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	r := v.rooms[k]
	if r == nil || !k.Has(asked) {
		return 0
	}
	var devices int64
	for n, nodes := range r.nodes {
		devices += n / count * count * nodes
	}
	if devices >= enough || !k.sharesWithOthers(asked) {
		return devices
	}
	left := map[string]int64{} // idle GPUs that do not fill a group, and GPUs that are used in part, by node
	for at, g := range r.used {
		found := *g
		found.Holders = slices.Collect(maps.Keys(v.held[at]))
		if !found.Fits(asked) {
			continue
		}
		n, known := left[g.Node]
		if !known {
			n = r.idle[g.Node] % count
		}
		if n++; n == count {
			n = 0
			if devices += count; devices >= enough {
				break
			}
		}
		left[g.Node] = n
	}
	return devices
}

// consumed returns what the holders of the GPU take of its capacities. shared is false if one of them holds a
// partition, or all of the GPU.
func (g *GPU) consumed() (sum map[resourceapi.QualifiedName]int64, shared bool) {
	sum = map[resourceapi.QualifiedName]int64{}
	for _, c := range g.Holders {
		for _, h := range g.Parts(c) {
			if h.Device != g.Name || h.Consumed == nil {
				return nil, false
			}
			for name, n := range h.Consumed {
				sum[name] += n
			}
		}
	}
	return sum, true
}

// leaves reports whether a GPU of the kind has something left of each capacity.
func (k *Kind) leaves(consumed map[resourceapi.QualifiedName]int64) bool {
	for name, capacity := range k.Device.Capacity {
		if p := capacity.RequestPolicy; p != nil && p.Default != nil && consumed[name]+least(p) > k.Capacity(name) {
			return false
		}
	}
	return true
}

// sharesWithOthers reports whether a request for these capacities fits on a GPU beside the smallest possible other one.
func (k *Kind) sharesWithOthers(asked map[resourceapi.QualifiedName]resource.Quantity) bool {
	if !ptr.Deref(k.Device.AllowMultipleAllocations, false) {
		return false
	}
	wants := map[resourceapi.QualifiedName]int64{}
	for name, capacity := range k.Device.Capacity {
		if p := capacity.RequestPolicy; p != nil && p.Default != nil {
			wants[name] = p.Default.Value()
		}
		if q, ok := asked[name]; ok {
			wants[name] = q.Value()
		}
	}
	return k.leaves(wants)
}

// least returns the smallest amount of a capacity that a request can take.
func least(p *resourceapi.CapacityRequestPolicy) int64 {
	switch {
	case len(p.ValidValues) > 0:
		return p.ValidValues[0].Value() // in ascending order
	case p.ValidRange != nil && p.ValidRange.Min != nil:
		return p.ValidRange.Min.Value()
	}
	return p.Default.Value()
}
