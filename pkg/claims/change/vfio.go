// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"fmt"
	"sync"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Passthrough gives GPUs to virtual machines. BindVFIO and ReturnVFIO may be repeated with the same arguments, also
// after the other one was interrupted.
type Passthrough interface {
	// Persistent reports whether the GPU, which is not bound to vfio-pci, is in persistence mode. Error: gpu.ErrBusy if
	// NVML does not list it yet.
	Persistent(ctx context.Context, id gpu.UUID) (bool, error)
	// BindVFIO binds the functions of the GPU to vfio-pci, itself first, after its MIG and persistence modes are off.
	// Error: gpu.ErrBusy, which names the users of the GPU or what the kernel has not finished within seconds: the next
	// call goes on with that.
	BindVFIO(ctx context.Context, id gpu.UUID, functions []gpu.PCIFunction) error
	// ReturnVFIO returns the functions to their drivers, and restores persistence mode. It is no error if the GPU is
	// gone. Errors: gpu.ErrBusy; others say what keeps the GPU from coming back.
	ReturnVFIO(ctx context.Context, id gpu.UUID, functions []gpu.PCIFunction, persistent bool) error
}

// WithPersistence returns the plan with the persistence modes that ReturnVFIO restores.
func WithPersistence(ctx context.Context, hw Passthrough, plan sharing.Plan) (sharing.Plan, error) {
	is := map[gpu.UUID]bool{}
	var mu sync.Mutex
	err := eachBound(plan, func(id gpu.UUID, _ sharing.AssignedVFIO) error {
		persistent, err := hw.Persistent(ctx, id)
		mu.Lock()
		defer mu.Unlock()
		is[id] = persistent
		return err
	})
	return plan.WithPersistence(is), err
}

// BindVFIO binds the GPUs of the plan that virtual machines get.
func BindVFIO(ctx context.Context, hw Passthrough, plan sharing.Plan) error {
	return eachBound(plan, func(id gpu.UUID, v sharing.AssignedVFIO) error {
		return hw.BindVFIO(ctx, id, v.Functions)
	})
}

// ReturnVFIO returns those GPUs.
func ReturnVFIO(ctx context.Context, hw Passthrough, plan sharing.Plan) error {
	return eachBound(plan, func(id gpu.UUID, v sharing.AssignedVFIO) error {
		return hw.ReturnVFIO(ctx, id, v.Functions, v.Persistent)
	})
}

// eachBound calls do for each GPU that the plan binds, in parallel.
func eachBound(plan sharing.Plan, do func(gpu.UUID, sharing.AssignedVFIO) error) error {
	bound := plan.Bound()
	return Each(plan.GPUs(), func(id gpu.UUID) error {
		v, ok := bound[id]
		if !ok {
			return nil
		}
		if err := do(id, v); err != nil {
			return fmt.Errorf("GPU %s: %w", id, err)
		}
		return nil
	})
}
