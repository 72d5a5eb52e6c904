// SPDX-License-Identifier: Apache-2.0

// Package inventory says what a node has to offer, in the words of Kubernetes.
package inventory

import (
	"cmp"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Inventory is the GPUs of a node, strongest first: the order in which the scheduler tries them. A divided one has partitions behind
// them: see Divide.
type Inventory []gpu.Device

// New orders the GPUs: by peak compute, then by memory, both falling, then by PCI address. Partitions come behind them in the order that
// they have. Same devices, same order.
func New(devices []gpu.Device) Inventory {
	inv := slices.Clone(devices)
	slices.SortStableFunc(inv, func(a, b gpu.Device) int {
		if a.Partition != nil || b.Partition != nil {
			return cmp.Compare(rank(a), rank(b))
		}
		return cmp.Or(
			cmp.Compare(b.Product.PeakCompute, a.Product.PeakCompute),
			cmp.Compare(b.Memory, a.Memory),
			cmp.Compare(a.PCI.String(), b.PCI.String()),
		)
	})
	return inv
}

// rank puts partitions behind GPUs.
func rank(d gpu.Device) int {
	if d.Partition != nil {
		return 1
	}
	return 0
}

// Find returns the device of that name.
func (inv Inventory) Find(name string) (gpu.Device, bool) {
	i := inv.index(name)
	if i < 0 {
		return gpu.Device{}, false
	}
	return inv[i], true
}

func (inv Inventory) index(name string) int {
	return slices.IndexFunc(inv, func(d gpu.Device) bool { return d.Name == name })
}

// GPUs are the devices that are whole GPUs.
func (inv Inventory) GPUs() Inventory {
	return slices.DeleteFunc(slices.Clone(inv), func(d gpu.Device) bool { return d.Partition != nil })
}

// Present are the physical GPUs that answer, never partitions. A GPU of which there are only partitions is among them; what is said of
// its memory, speed and use is then that of a partition.
func (inv Inventory) Present() Inventory {
	var present Inventory
	for _, d := range inv {
		if d.Partition != nil {
			d = physical(d)
		}
		if !d.Lost && present.index(d.Name) < 0 {
			present = append(present, d)
		}
	}
	return present
}

// physical is the GPU that the partition is a part of, as far as the partition tells.
func physical(d gpu.Device) gpu.Device {
	d.Name, d.Type, d.UUID = gpu.ParentName(d.Name), gpu.TypeGPU, d.Partition.Parent
	d.Partition, d.Blocked = nil, ""
	return d
}

// Retain adds what was known before and is not found any more, marked as lost, for as long as a claim holds it: a device that is in
// use has to stay published, or the scheduler would forget who has it. It also adds what was found the last time, because a claim
// may be on its way to it: it is forgotten when it is missed twice. Of a GPU that was found to be lost, what was known before stays
// known. A partition stays behind the device that it was published behind.
func (inv Inventory) Retain(known Inventory, held func(device string) bool) Inventory {
	all := slices.Clone(inv)
	for i, d := range known {
		if at := all.index(d.Name); at >= 0 && all[at].Lost {
			d.Lost = true
			all[at] = d
		}
		if all.index(d.Name) < 0 && (held(d.Name) || !d.Lost) {
			d.Lost = true
			all = slices.Insert(all, all.behind(known[:i]), d)
		}
	}
	return New(all)
}

// behind is the place behind the last of these devices that is there.
func (inv Inventory) behind(devices Inventory) int {
	for _, d := range slices.Backward(devices) {
		if i := inv.index(d.Name); i >= 0 {
			return i + 1
		}
	}
	return 0
}
