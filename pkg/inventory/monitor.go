// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Monitor is the name of the monitor device, which stands for all GPUs of a node. It differs from all GPU names, which
// come from PCI addresses.
const Monitor = "monitor"

// MonitorPool returns the pool of a node's monitor device. It is not the pool of the GPUs, because autoscalers take the
// devices of a pool to be alike and count how many are allocated. A node whose name leaves no room for it, at more than
// 245 characters, has no monitor device.
func MonitorPool(node string) string { return node + "/" + Monitor }

// PoolOf returns the pool of the device of the node.
func PoolOf(node, device string) string {
	if device == Monitor {
		return MonitorPool(node)
	}
	return node
}

// SlicePrefix returns what the name of the slice with that number of the pool begins with, before the name of the node.
// Slices of monitor devices come after all of GPUs, because others take the first device of the driver for a GPU.
func SlicePrefix(number int, driver, node, pool string) string {
	if pool == MonitorPool(node) {
		driver += "." + Monitor // a point sorts after a hyphen
	}
	return fmt.Sprintf("%05x-%s-", number, driver)
}

// monitor returns the monitor device of a node. It is always free: it may be allocated any number of times and consumes
// nothing. Admin access to the GPUs themselves would fail when their capacity or counters are used up. Of the model and
// the versions it says what all GPUs have in common.
func (inv Inventory) monitor(node string) gpu.Device {
	id := MonitorID(node)
	return gpu.Device{
		Product: gpu.Product{
			Name:              common(inv, func(d *gpu.Device) string { return d.Product.Name }),
			Brand:             common(inv, func(d *gpu.Device) string { return d.Product.Brand }),
			Architecture:      common(inv, func(d *gpu.Device) string { return d.Product.Architecture }),
			ComputeCapability: common(inv, func(d *gpu.Device) gpu.Version { return d.Product.ComputeCapability }),
		},
		DriverVersion: common(inv, func(d *gpu.Device) string { return d.DriverVersion }),
		CUDAVersion:   common(inv, func(d *gpu.Device) gpu.Version { return d.CUDAVersion }),
		Name:          Monitor,
		Type:          gpu.TypeMonitor,
		UUID:          gpu.UUID(id),
		NUMANode:      gpu.NoNUMANode,
		Index:         -1,
		Topology:      gpu.Topology{NVLinkDomain: id, FabricDomain: id},
	}
}

// common returns what all devices have of which it is known; the zero value: they differ.
func common[T comparable](inv Inventory, of func(*gpu.Device) T) (same T) {
	var unknown T
	for i := range inv {
		switch is := of(&inv[i]); {
		case same == unknown:
			same = is
		case is != unknown && is != same:
			return unknown
		}
	}
	return same
}

// MonitorID identifies the monitor device of a node in attributes that people match on. A name that is too long is
// hashed and not cut, because others may have the same prefix.
func MonitorID(node string) string {
	id := Monitor + "-" + node
	if len(id) <= maxString {
		return id
	}
	hash := sha256.Sum256([]byte(node))
	return Monitor + "-" + hex.EncodeToString(hash[:16])
}
