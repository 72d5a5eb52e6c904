// SPDX-License-Identifier: Apache-2.0

// Package inventory says what a node has to offer, in the words of Kubernetes.
package inventory

import (
	"cmp"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Inventory is the GPUs of a node, strongest first: the order in which the scheduler tries them.
type Inventory []gpu.Device

// New orders the devices: by peak compute, then by memory, both falling, then by PCI address. Same devices, same order.
func New(devices []gpu.Device) Inventory {
	inv := slices.Clone(devices)
	slices.SortFunc(inv, func(a, b gpu.Device) int {
		return cmp.Or(
			cmp.Compare(b.Product.PeakCompute, a.Product.PeakCompute),
			cmp.Compare(b.Memory, a.Memory),
			cmp.Compare(a.PCI.String(), b.PCI.String()),
		)
	})
	return inv
}

// Find returns the device of that name.
func (inv Inventory) Find(name string) (gpu.Device, bool) {
	i := slices.IndexFunc(inv, func(d gpu.Device) bool { return d.Name == name })
	if i < 0 {
		return gpu.Device{}, false
	}
	return inv[i], true
}

// Present are the GPUs that answer.
func (inv Inventory) Present() Inventory {
	return slices.DeleteFunc(slices.Clone(inv), func(d gpu.Device) bool { return d.Lost })
}

// Retain adds what was known before and is not found any more, marked as lost, for as long as a claim holds it: a device that is in
// use has to stay published, or the scheduler would forget who has it. It also adds what was found the last time, because a claim
// may be on its way to it: it is forgotten when it is missed twice.
func (inv Inventory) Retain(known Inventory, held func(device string) bool) Inventory {
	all := slices.Clone(inv)
	for _, d := range known {
		if _, found := inv.Find(d.Name); !found && (held(d.Name) || !d.Lost) {
			d.Lost = true
			all = append(all, d)
		}
	}
	return New(all)
}
