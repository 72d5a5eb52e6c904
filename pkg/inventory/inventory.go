// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Inventory is the devices of a node: the GPUs, fastest first, in the order in which the scheduler tries them, and then
// the partitions and the GPUs for virtual machines: see WithPartitions.
type Inventory []gpu.Device

// New sorts the GPUs by peak compute and memory, both descending, then by PCI address. Partitions follow in their given
// order, and then GPUs for virtual machines. The same devices always have the same order.
func New(devices []gpu.Device) Inventory {
	inv := slices.Clone(devices)
	slices.SortStableFunc(inv, func(a, b gpu.Device) int {
		if rank(a) > 0 || rank(b) > 0 {
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

// rank sorts partitions after GPUs, GPUs for virtual machines after those, and then vGPUs.
func rank(d gpu.Device) int {
	switch {
	case d.VGPU != nil:
		return 3
	case d.Type == gpu.TypeVFIO:
		return 2
	case d.Partition != nil:
		return 1
	}
	return 0
}

// Find returns the named device.
func (inv Inventory) Find(name string) (gpu.Device, bool) {
	i := inv.index(name)
	if i < 0 {
		return gpu.Device{}, false
	}
	return inv[i], true
}

// FindUUID returns the device with the UUID. Unlike its name, it stays when the GPU gets another place on the PCI bus.
func (inv Inventory) FindUUID(id gpu.UUID) (gpu.Device, bool) {
	i := slices.IndexFunc(inv, func(d gpu.Device) bool { return d.UUID == id })
	if i < 0 {
		return gpu.Device{}, false
	}
	return inv[i], true
}

func (inv Inventory) index(name string) int {
	for i := range inv { // a device has some hundred bytes, which slices.IndexFunc would copy
		if inv[i].Name == name {
			return i
		}
	}
	return -1
}

// GPUs returns the devices that are whole GPUs, without those for virtual machines.
func (inv Inventory) GPUs() Inventory {
	var gpus Inventory // much smaller than with all partitions
	for _, d := range inv {
		if rank(d) == 0 {
			gpus = append(gpus, d)
		}
	}
	return gpus
}

// Present returns the physical GPUs that answer, without those in virtual machines. It includes a GPU that is only
// offered as partitions or vGPUs; its memory, speed and use are then those of one.
func (inv Inventory) Present() Inventory {
	var present Inventory
	for i := range inv {
		d := &inv[i]
		if d.Lost || d.Type == gpu.TypeVFIO || d.InVM() || present.index(gpu.ParentName(d.Name)) >= 0 {
			continue
		}
		if d.Partition != nil || d.VGPU != nil {
			present = append(present, physical(*d))
		} else {
			present = append(present, *d)
		}
	}
	return present
}

// physical returns the GPU of the partition or vGPU, as far as that describes it.
func physical(d gpu.Device) gpu.Device {
	d.Name, d.Type, d.UUID = gpu.ParentName(d.Name), gpu.TypeGPU, d.Physical()
	d.Partition, d.VGPU, d.Blocked = nil, nil, ""
	return d
}

// Retain adds known devices that are missing now, marked as lost. A device that a claim holds must stay published, or
// the scheduler would forget its allocation. A device that nobody holds stays for one more time, because a claim may be
// about to get it. A GPU that was found lost keeps its known properties. A partition stays after the device that it was
// published after. A GPU that has another name now, at another place on the PCI bus, is not lost: its former name stays
// only while a claim holds it.
func (inv Inventory) Retain(known Inventory, held func(device string) bool) Inventory {
	all := slices.Clone(inv)
	for i, d := range known {
		if at := all.index(d.Name); at >= 0 {
			if all[at].Lost {
				d.Lost, d.Gone, d.ResetRequired = true, d.Gone || all[at].Gone, all[at].ResetRequired
				all[at] = d
			}
			continue
		}
		now := inv.newName(d)
		if !held(d.Name) && (d.Lost || now != "") {
			continue
		}
		if now != "" {
			d = formerName(d, now)
		}
		d.Lost, d.Gone, d.ResetRequired = true, true, false
		all = slices.Insert(all, all.after(known[:i]), d)
	}
	return New(all)
}

// newName returns the present name of the device's GPU if it differs from the known one.
func (inv Inventory) newName(known gpu.Device) string {
	for _, d := range inv {
		name := gpu.ParentName(d.Name)
		if !d.Lost && d.Physical() != "" && d.Physical() == known.Physical() && name != gpu.ParentName(known.Name) {
			return name
		}
	}
	return ""
}

// formerName returns what stays of a device whose GPU has another name now: nothing that is the GPU's.
func formerName(d gpu.Device, now string) gpu.Device {
	d.MovedTo, d.UUID, d.MIG.Instances = now, gpu.UUID(d.Name), nil
	if d.Partition != nil {
		p := *d.Partition
		p.Parent = gpu.UUID(gpu.ParentName(d.Name))
		d.Partition = &p
	}
	if d.VGPU != nil {
		v := *d.VGPU
		v.Parent = gpu.UUID(gpu.ParentName(d.Name))
		d.VGPU = &v
	}
	return d
}

// after returns the index after the last of these devices that is present.
func (inv Inventory) after(devices Inventory) int {
	for _, d := range slices.Backward(devices) {
		if i := inv.index(d.Name); i >= 0 {
			return i + 1
		}
	}
	return 0
}
