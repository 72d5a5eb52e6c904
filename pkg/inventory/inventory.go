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
