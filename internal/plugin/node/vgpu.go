// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// withOwnVGPUs marks the vGPUs that the driver has made for claims.
func withOwnVGPUs(gpus []gpu.Device, r records) []gpu.Device {
	for i, d := range gpus {
		if d.VGPUs == nil {
			continue
		}
		all := *d.VGPUs
		all.Existing = slices.Clone(all.Existing)
		for j, v := range all.Existing {
			all.Existing[j].Made = v.MDev != "" && slices.ContainsFunc(r.assignments, func(a sharing.Assignment) bool {
				return a.MakesVGPU() && a.VFIO.VGPU.UUID == v.MDev
			})
		}
		gpus[i].VGPUs = &all
	}
	return gpus
}

func (p observedPassthrough) CreateVGPU(ctx context.Context, at gpu.PCIAddress, name, uuid string) error {
	return p.changed(p.Passthrough.CreateVGPU(ctx, at, name, uuid))
}

func (p observedPassthrough) RemoveVGPU(ctx context.Context, at gpu.PCIAddress, uuid string) error {
	return p.changed(p.Passthrough.RemoveVGPU(ctx, at, uuid))
}

// changed asks for a discovery unless err says that nothing has changed: a call that waits tries again each second.
func (p observedPassthrough) changed(err error) error {
	if err == nil {
		p.node.send(discoverNow{})
	}
	return err
}
