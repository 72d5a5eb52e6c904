// SPDX-License-Identifier: Apache-2.0

package inventory

import "github.com/gpudra/gpu-dra-driver/pkg/gpu"

// Physical are the GPUs that answer, each once, also those that are offered by their partitions only: the GPUs that a monitor sees.
func (inv Inventory) Physical() Inventory {
	var all Inventory
	for _, d := range inv.Present() {
		if d.Partition != nil {
			d = whole(d)
		}
		if _, known := all.Find(d.Name); !known {
			all = append(all, d)
		}
	}
	return New(all)
}

// whole is what is known of the GPU of a partition.
func whole(d gpu.Device) gpu.Device {
	d.Name, d.Type, d.UUID = gpu.ParentName(d.Name), gpu.TypeGPU, d.Partition.Parent
	d.Partition, d.Blocked = nil, ""
	return d
}
