// SPDX-License-Identifier: Apache-2.0

// Package change brings GPUs, partitions and MPS daemons into the state that plans need. It decides nothing and records
// nothing: package claims knows when.
package change

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// Hardware changes GPUs. Every method may be repeated with the same arguments. A change is a method of its own if the
// record must be on disk before the next change. A GPU that answers only that it must be reset counts as gone.
type Hardware interface {
	// Set changes the settings and the MIG mode of a physical GPU. It is no error if the GPU is gone and s only
	// restores what was found. Errors: gpu.ErrBusy, gpu.ErrForeignPartition, gpu.ErrMIGModeFixed.
	Set(ctx context.Context, id gpu.UUID, s gpu.DesiredState) error
	// ComputeMode returns the present compute mode of a physical GPU.
	ComputeMode(ctx context.Context, id gpu.UUID) (gpu.ComputeMode, error)
	// CheckPlacement returns gpu.ErrForeignPartition if another partition overlaps the placement.
	CheckPlacement(ctx context.Context, at gpu.Placement) error
	// CreatePartition creates the partition on a GPU in MIG mode and returns its UUID. If known is empty, an existing
	// partition at the placement is adopted; otherwise it must have that UUID. Errors: gpu.ErrForeignPartition,
	// gpu.ErrPartitionRemoved.
	CreatePartition(ctx context.Context, at gpu.Placement, known gpu.UUID) (gpu.UUID, error)
	// DestroyPartition removes the partition, also an incomplete one. A partition with another UUID than known is left
	// alone. It is no error if there is none, or if the GPU is gone. Error: gpu.ErrBusy.
	DestroyPartition(ctx context.Context, at gpu.Placement, known gpu.UUID) error
}

// WithFound returns the plan with the compute and persistence modes that its end restores. If others have set the GPU,
// what they have found counts. Without them, an MPS daemon may be left of a claim, and its mode with it.
func WithFound(ctx context.Context, hw Hardware, vms Passthrough, daemons mps.Dir, plan sharing.Plan,
	others []sharing.Holder) (sharing.Plan, error) {
	plan.Assignments = slices.Clone(plan.Assignments)
	for i, a := range plan.Assignments {
		if !a.SetsGPU() {
			continue
		}
		mode, set := sharing.FoundMode(a.GPU, others)
		if !set {
			var err error
			if mode, err = hw.ComputeMode(ctx, a.GPU); err != nil {
				return plan, fmt.Errorf("GPU %s: %w", a.GPU, err)
			}
			if mode == gpu.ExclusiveProcess {
				uses := func(d mps.RequestedDaemon) bool { return slices.Contains(d.GPUs, a.GPU) }
				if left, _ := daemons.Requested(); slices.ContainsFunc(left, uses) {
					mode = ""
				}
			}
		}
		plan.Assignments[i].FoundMode = mode
	}
	return WithPersistence(ctx, vms, plan)
}

// Set brings GPUs into their states.
func Set(ctx context.Context, hw Hardware, ids []gpu.UUID, state func(gpu.UUID) gpu.DesiredState) error {
	return Each(ids, func(id gpu.UUID) error {
		s := state(id)
		if s == (gpu.DesiredState{}) {
			return nil
		}
		if err := hw.Set(ctx, id, s); err != nil {
			return fmt.Errorf("GPU %s: %w", id, err)
		}
		return nil
	})
}

// Each calls do for all GPUs in parallel, because one call may take seconds. The error joins those of all calls.
func Each(ids []gpu.UUID, do func(gpu.UUID) error) error {
	if len(ids) == 1 {
		return do(ids[0])
	}
	errs := make([]error, len(ids))
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() { errs[i] = do(id) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// CheckPlacements fails if foreign partitions overlap those that the plan makes and has not begun.
func CheckPlacements(ctx context.Context, hw Hardware, plan sharing.Plan) error {
	var errs []error
	for _, a := range plan.Assignments {
		if !a.MakesPartition() || a.Partition.MayExist() {
			continue
		}
		if err := hw.CheckPlacement(ctx, a.Partition.Placement); err != nil {
			errs = append(errs, fmt.Errorf("partition %s: %w", a.Partition.Placement, err))
		}
	}
	return errors.Join(errs...)
}

// CreatePartitions creates the partitions of the plan, and returns the plan with their UUIDs.
func CreatePartitions(ctx context.Context, hw Hardware, plan sharing.Plan) (sharing.Plan, error) {
	partitions, made := plan.Partitions(), map[gpu.Placement]gpu.UUID{}
	var mu sync.Mutex
	err := Each(plan.GPUs(), func(id gpu.UUID) error {
		for _, part := range partitions[id] { // partitions of one GPU are created one after the other
			var uuid gpu.UUID
			if err := steps.Do(ctx, steps.CreatePartition, func(ctx context.Context) (err error) {
				uuid, err = hw.CreatePartition(ctx, part.Placement, part.UUID)
				return err
			}); err != nil {
				return fmt.Errorf("create partition %s: %w", part.Placement, err)
			}
			mu.Lock()
			made[part.Placement] = uuid
			mu.Unlock()
		}
		return nil
	})
	return plan.Made(made), err
}

// DestroyPartitions removes the partitions that the plan has made.
func DestroyPartitions(ctx context.Context, hw Hardware, plan sharing.Plan) error {
	partitions := plan.Partitions()
	return Each(plan.GPUs(), func(id gpu.UUID) error {
		for _, part := range partitions[id] {
			if !part.MayExist() {
				continue
			}
			if err := steps.Do(ctx, steps.DestroyPartition, func(ctx context.Context) error {
				return hw.DestroyPartition(ctx, part.Placement, part.UUID)
			}); err != nil {
				return fmt.Errorf("remove partition %s: %w", part.Placement, err)
			}
		}
		return nil
	})
}

// RequestDaemons requests those of the MPS daemons that the holders use, with the limits that they need, and ends the
// others. memory is the size of the /dev/shm of a daemon and its clients, in bytes; 0: they use that of the node.
func RequestDaemons(ctx context.Context, daemons mps.Dir, memory uint64, ids []string, holders []sharing.Holder) error {
	unused := slices.Clone(ids)
	for _, d := range sharing.Daemons(ids, holders) {
		unused = slices.DeleteFunc(unused, func(id string) bool { return id == d.ID })
		d.SharedMemory = memory
		if err := steps.Do(ctx, steps.RequestDaemon, func(context.Context) error {
			return daemons.Request(d)
		}); err != nil {
			return fmt.Errorf("ask for MPS daemon %s: %w", d.ID, err)
		}
	}
	for _, id := range unused {
		if err := steps.Do(ctx, steps.ReleaseDaemon, func(context.Context) error {
			return daemons.Release(id)
		}); err != nil {
			return fmt.Errorf("end MPS daemon %s: %w", id, err)
		}
	}
	return nil
}
