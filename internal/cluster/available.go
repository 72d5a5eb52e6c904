// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// availability counts the GPUs of one kind that new claims can get something of. It follows every change, because a
// claim for the strongest GPU must not count the GPUs of 5,000 nodes.
type availability struct {
	idle  map[string]int64  // GPUs that no claim holds, by node
	nodes map[int64]int64   // nodes with that many idle GPUs
	used  map[*GPU]struct{} // GPUs that claims hold in part, so that others may have the rest
}

// recount counts the GPU anew, after a change, among those of its kind. The caller holds v.mu.
func (v *View) recount(g *GPU) {
	v.measure(g)
	if k := g.counted; k != nil {
		if _, inPart := k.available.used[g]; inPart {
			delete(k.available.used, g)
		} else {
			k.available.addIdle(g.idleOn, -1)
		}
		g.counted = nil
	}
	if g.Whole == nil || g.Whole.Tainted {
		return
	}
	k := g.Whole.Kind
	if len(g.Held) == 0 {
		g.counted, g.idleOn = k, g.Node
		k.available.addIdle(g.Node, 1)
		return
	}
	if g.use.shared && k.leaves(g.use.Consumed) {
		g.counted = k
		k.available.used[g] = struct{}{}
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

// Available returns how many GPUs of the kind can now serve requests for count GPUs of one node with these capacities.
// It stops counting at enough.
func (v *View) Available(k *DeviceKind, asked map[resourceapi.QualifiedName]resource.Quantity, count,
	enough int64) int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if !k.Has(asked) {
		return 0
	}
	var devices int64
	for n, nodes := range k.available.nodes {
		devices += n / count * count * nodes
	}
	if devices >= enough || !k.sharesWithOthers(asked) {
		return devices
	}
	left := map[string]int64{} // idle GPUs that do not fill a group, and GPUs that are used in part, by node
	for g := range k.available.used {
		if !g.Fits(asked) {
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

// FitsBeside reports whether a GPU of the kind that claims hold in part has room for a request for these capacities.
func (v *View) FitsBeside(k *DeviceKind, asked map[resourceapi.QualifiedName]resource.Quantity) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for g := range k.available.used {
		if g.Fits(asked) {
			return true
		}
	}
	return false
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

// sharesWithOthers reports whether a request for these capacities fits on a GPU beside the smallest possible other one.
func (k *DeviceKind) sharesWithOthers(asked map[resourceapi.QualifiedName]resource.Quantity) bool {
	return k.shared() && k.leaves(k.Takes(asked))
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
