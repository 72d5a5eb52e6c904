// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	resourceapi "k8s.io/api/resource/v1"
)

// availability counts the GPUs of one kind that new claims can get something of. It follows every change, because a
// claim for the strongest GPU must not count the GPUs of 5,000 nodes.
type availability struct {
	idle  map[string]int64  // GPUs that no claim holds and no taint is on, by node
	nodes map[int64]int64   // nodes with that many idle GPUs
	some  map[*GPU]struct{} // GPUs that some claims can get something of: held in part, or tainted
}

// recount counts the GPU anew, after a change, among those of its kind. The caller holds v.mu.
func (v *View) recount(g *GPU) {
	v.measure(g)
	if k := g.counted; k != nil {
		if _, isSome := k.available.some[g]; isSome {
			delete(k.available.some, g)
		} else {
			k.available.addIdle(g.idleOn, -1)
		}
		g.counted = nil
	}
	if g.Whole == nil {
		return
	}
	k := g.Whole.Kind
	if len(g.Held) == 0 && g.Whole.Admits(nil) {
		g.counted, g.idleOn = k, g.Node
		k.available.addIdle(g.Node, 1)
		return
	}
	if len(g.Held) == 0 || g.use.shared && k.leaves(g.use.Consumed) {
		g.counted = k
		k.available.some[g] = struct{}{}
	}
}

// addIdle changes the number of idle GPUs of a node.
func (a *availability) addIdle(node string, by int64) {
	before := a.idle[node]
	after := before + by
	if a.nodes[before]--; a.nodes[before] <= 0 {
		delete(a.nodes, before)
	}
	if after == 0 {
		delete(a.idle, node)
		return
	}
	a.idle[node] = after
	a.nodes[after]++
}

// Available returns how many GPUs of the kind can now serve requests such as this one, which accepts them. It stops
// counting at enough.
func (v *View) Available(k *DeviceKind, s Subrequest, enough int64) int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	count, takes := s.Devices(), k.Takes(s.Asked())
	var devices int64
	for n, nodes := range k.available.nodes {
		devices += n / count * count * nodes
	}
	if devices >= enough || len(*s.Tolerations) == 0 && !(k.Shared() && k.leaves(takes)) {
		return devices
	}
	left := map[string]int64{} // idle GPUs that do not fill a group, and others that can serve the request, by node
	for g := range k.available.some {
		if !g.Whole.Admits(*s.Tolerations) || !k.Room(g.use, takes) {
			continue
		}
		n, known := left[g.Node]
		if !known {
			n = k.available.idle[g.Node] % count
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

// Beside adds the nodes where claims hold a GPU of the kind in part that has room for another request. takes is as
// DeviceKind.Takes returns it.
func (v *View) Beside(k *DeviceKind, takes []int64, tolerations []resourceapi.DeviceToleration,
	nodes map[string]bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for g := range k.available.some {
		if len(g.Held) > 0 && k.Room(g.use, takes) && g.Whole.Admits(tolerations) {
			nodes[g.Node] = true
		}
	}
}

// leaves reports whether a GPU of the kind has something left of each capacity.
func (k *DeviceKind) leaves(consumed []int64) bool {
	for i, p := range k.policies {
		if consumed[i]+least(p) > p.size {
			return false
		}
	}
	return true
}

// least returns the smallest amount of a capacity that a request can take.
func least(p policy) int64 {
	switch {
	case len(p.ValidValues) > 0:
		return p.ValidValues[0].Value() // in ascending order
	case p.ValidRange != nil && p.ValidRange.Min != nil:
		return p.ValidRange.Min.Value()
	}
	return p.Default.Value()
}
