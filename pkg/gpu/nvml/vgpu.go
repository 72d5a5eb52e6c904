// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// withVGPUs adds to GPUs their vGPUs.
func (m *Machine) withVGPUs(devices []gpu.Device) []gpu.Device {
	for i, d := range devices {
		all := m.bus().VGPUs(d.PCI)
		if all == nil {
			continue
		}
		for j := range all.Existing {
			all.Existing[j].Parent = d.UUID
		}
		devices[i].VGPUs = all
	}
	return devices
}

// CreateVGPU makes a mediated device.
func (m *Machine) CreateVGPU(ctx context.Context, at gpu.PCIAddress, name, uuid string) error {
	return steps.Do(ctx, steps.CreateVGPU, func(ctx context.Context) error {
		return m.limited(ctx, func(ctx context.Context) error { return m.bus().CreateVGPU(ctx, at, name, uuid) })
	})
}

// RemoveVGPU removes a mediated device.
func (m *Machine) RemoveVGPU(ctx context.Context, at gpu.PCIAddress, uuid string) error {
	return steps.Do(ctx, steps.RemoveVGPU, func(ctx context.Context) error {
		return m.limited(ctx, func(ctx context.Context) error { return m.bus().RemoveVGPU(ctx, at, uuid) })
	})
}

// VGPUNodes is VFIONodes for a mediated device.
func (m *Machine) VGPUNodes(uuid string, iommufd bool) ([]gpu.DeviceNode, error) {
	return m.vfioNodes(iommufd, func(iommufd bool) ([]gpu.DeviceNode, error) {
		return m.bus().VGPUNodes(uuid, iommufd)
	})
}
