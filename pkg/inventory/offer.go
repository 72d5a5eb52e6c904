// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Use says how claims have a GPU.
type Use int

const (
	// Unused GPUs are free.
	Unused Use = iota
	// UsedWhole GPUs are held as a whole, by shares, or by a virtual machine.
	UsedWhole
	// UsedInParts GPUs have partitions that the driver has made for claims.
	UsedInParts
)

// These are the keys of the ConfigMap in which the controller names nodes, separated by spaces, and the time of the
// request: the plugin there publishes all possible partitions of its unused GPUs, because a pod waits for some.
const (
	RequestedNodes = "nodes"
	RequestedAt    = "requested"
)

// Requested returns the nodes that the data of the ConfigMap names now, if that is another request than before.
func Requested(before, now map[string]string) []string {
	if before[RequestedAt] == now[RequestedAt] { // only labels differ
		return nil
	}
	return strings.Fields(now[RequestedNodes])
}

// Offer returns the names of the GPUs whose possible partitions are published. The scheduler's cost grows with the
// devices that are published, and one GPU has up to 25 possible partitions. So these are the GPUs that are used in
// parts, those of before, and of each model as many unused ones as GPUs are used in parts, at least one. The last of
// them is chosen first: whole GPUs are taken from the front. A GPU whose Use does not say OnDemand, or of which only
// partitions are published, is always among them.
//
// before reports whether a GPU was among them, and may stay: see Offered.
func (inv Inventory) Offer(use func(gpu string) Use, before func(gpu string) bool) map[string]bool {
	offered, spare, inParts := map[string]bool{}, map[string]int{}, map[string]int{}
	model := func(d gpu.Device) string { return d.Product.Name }
	whole, usable := inv.GPUs(), inv.partitionable()
	var unused []gpu.Device
	for _, d := range whole {
		name := d.Name
		switch {
		case d.Use.Partitions != gpu.PartitionsDynamic:
		case use(name) == UsedInParts:
			inParts[model(d)]++
			offered[name] = true
		case !d.Use.OnDemand || before(name):
			offered[name] = true
			if use(name) == Unused && usable[name] {
				spare[model(d)]++
			}
		case use(name) == Unused:
			unused = append(unused, d)
		}
	}
	for _, sound := range []bool{true, false} { // if none is usable, the taints of one say why
		for _, d := range slices.Backward(unused) {
			enough := 1
			if sound {
				enough = max(1, inParts[model(d)])
			}
			if usable[d.Name] == sound && spare[model(d)] < enough {
				offered[d.Name] = true
				spare[model(d)]++
			}
		}
	}
	for _, d := range inv {
		if name := gpu.ParentName(d.Name); IsPossible(d) && whole.index(name) < 0 {
			offered[name] = true
		}
	}
	return offered
}

// WithdrawAfter is how long claims must hold a GPU as a whole before its possible partitions are withdrawn: then no
// claim can be on its way to one of them, and short pods do not change the slices.
const WithdrawAfter = time.Minute

// Offered are the GPUs of a node whose possible partitions are published.
type Offered struct {
	GPUs  map[string]bool      // by name
	Since map[string]time.Time // since when claims hold a GPU as a whole
}

// Next returns what is to be published now. all: a pod waits for partitions of unused GPUs. keep: what is published
// stays, because use may be out of date.
func (o Offered) Next(inv Inventory, use func(gpu string) Use, now time.Time, all, keep bool) Offered {
	since := map[string]time.Time{}
	for _, d := range inv.GPUs() {
		if use(d.Name) == UsedWhole {
			since[d.Name] = cmp.Or(o.Since[d.Name], now)
		}
	}
	return Offered{Since: since, GPUs: inv.Offer(use, func(name string) bool {
		held, ok := since[name]
		return all && !ok || o.GPUs[name] && (keep || !ok || now.Sub(held) < WithdrawAfter)
	})}
}

// OfferAtFirst is Offer before a claim has had anything.
func (inv Inventory) OfferAtFirst() map[string]bool {
	return inv.Offer(func(string) Use { return Unused }, func(string) bool { return false })
}

// Only returns the inventory without the possible partitions of GPUs that are not offered: see Offer. A GPU without any
// has no counters of partitions.
func (inv Inventory) Only(offered map[string]bool) Inventory {
	var all Inventory
	for _, d := range inv {
		if !IsPossible(d) || offered[gpu.ParentName(d.Name)] {
			all = append(all, d)
		}
	}
	return all
}

// IsPossible reports whether the device is a partition that the driver makes when a claim gets it.
func IsPossible(d gpu.Device) bool { return d.Partition != nil && !d.Partition.Static }

// partitionable returns the names of the GPUs of which a claim can get a possible partition now.
func (inv Inventory) partitionable() map[string]bool {
	all := map[string]bool{}
	for _, d := range inv {
		if IsPossible(d) && !prevented(d) {
			all[gpu.ParentName(d.Name)] = true
		}
	}
	return all
}

// prevented reports whether a taint keeps new claims from the device.
func prevented(d gpu.Device) bool {
	for _, t := range taints(d) {
		if t.Effect == resourceapi.DeviceTaintEffectNoSchedule || t.Effect == resourceapi.DeviceTaintEffectNoExecute {
			return true
		}
	}
	return false
}
