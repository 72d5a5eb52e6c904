// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"fmt"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// VGPUs makes and removes vGPUs. Both methods may be repeated with the same arguments.
type VGPUs interface {
	// CreateVGPU makes a mediated device of the type, with that UUID, on the GPU at the address. Error: gpu.ErrBusy if
	// there is no room for it.
	CreateVGPU(ctx context.Context, at gpu.PCIAddress, name, uuid string) error
	// RemoveVGPU removes it. It is no error if there is none, or if the GPU is gone. Error: gpu.ErrBusy while a program
	// has it open.
	RemoveVGPU(ctx context.Context, at gpu.PCIAddress, uuid string) error
}

// CreateVGPUs makes the vGPUs of the plan.
func CreateVGPUs(ctx context.Context, hw VGPUs, plan sharing.Plan) error {
	return eachMade(plan, func(at gpu.PCIAddress, v sharing.AssignedVGPU) error {
		return hw.CreateVGPU(ctx, at, v.Type, v.UUID)
	})
}

// RemoveVGPUs removes them.
func RemoveVGPUs(ctx context.Context, hw VGPUs, plan sharing.Plan) error {
	return eachMade(plan, func(at gpu.PCIAddress, v sharing.AssignedVGPU) error {
		return hw.RemoveVGPU(ctx, at, v.UUID)
	})
}

// eachMade calls do for each vGPU that the plan makes: those of one GPU one after the other, GPUs in parallel.
func eachMade(plan sharing.Plan, do func(gpu.PCIAddress, sharing.AssignedVGPU) error) error {
	return Each(plan.GPUs(), func(id gpu.UUID) error {
		for _, a := range plan.Assignments {
			if a.GPU != id || !a.MakesVGPU() {
				continue
			}
			if err := do(a.VFIO.PCI, *a.VFIO.VGPU); err != nil {
				return fmt.Errorf("GPU %s: %w", id, err)
			}
		}
		return nil
	})
}
