// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// each calls do for all GPUs in parallel, because one call may take seconds. The error joins those of all calls.
func each(ids []gpu.UUID, do func(gpu.UUID) error) error {
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

// setTo returns a function for each, which brings a GPU into its state.
func (t *tx) setTo(state func(gpu.UUID) gpu.State) func(gpu.UUID) error {
	return func(id gpu.UUID) error {
		s := state(id)
		if s == (gpu.State{}) {
			return nil
		}
		if err := t.Hardware.Set(t.ctx, id, s); err != nil {
			return fmt.Errorf("GPU %s: %w", id, err)
		}
		return nil
	}
}

// restore sets what the plan has changed of its GPUs to what the other claims need.
func (t *tx) restore(plan sharing.Plan) error {
	return each(plan.GPUs(), t.setTo(func(id gpu.UUID) gpu.State { return sharing.StateWithout(id, plan, t.others) }))
}

// makePartitions creates the partitions of the plan, and records their UUIDs. Before they are recorded as begun, a
// partition at a placement belongs to somebody else.
func (t *tx) makePartitions() error {
	partitions := t.record.Plan.Partitions()
	if len(partitions) == 0 {
		return nil
	}
	if err := t.checkPlacements(); err != nil {
		return err
	}
	if err := t.putPlan(t.record.Plan.Begun()); err != nil {
		return err
	}
	made := map[gpu.Placement]gpu.UUID{}
	var mu sync.Mutex
	if err := each(t.record.Plan.GPUs(), func(id gpu.UUID) error {
		for _, part := range partitions[id] { // partitions of one GPU are created one after the other
			uuid, err := step(t, steps.CreatePartition, func(ctx context.Context) (gpu.UUID, error) {
				return t.Hardware.CreatePartition(ctx, part.Placement, part.UUID)
			})
			if err != nil {
				return fmt.Errorf("create partition %s: %w", part.Placement, err)
			}
			mu.Lock()
			made[part.Placement] = uuid
			mu.Unlock()
		}
		return nil
	}); err != nil {
		return err
	}
	return t.putPlan(t.record.Plan.Made(made))
}

// checkPlacements fails if foreign partitions overlap those that the plan makes and has not begun.
func (t *tx) checkPlacements() error {
	var errs []error
	for _, a := range t.record.Plan.Assignments {
		if !a.MakesPartition() || a.Partition.MayExist() {
			continue
		}
		if err := t.Hardware.CheckPlacement(t.ctx, a.Partition.Placement); err != nil {
			errs = append(errs, fmt.Errorf("partition %s: %w", a.Partition.Placement, err))
		}
	}
	return errors.Join(errs...)
}

// destroyPartitions removes the partitions that the plan has made.
func (t *tx) destroyPartitions(plan sharing.Plan) error {
	partitions := plan.Partitions()
	return each(plan.GPUs(), func(id gpu.UUID) error {
		for _, part := range partitions[id] {
			if !part.MayExist() {
				continue
			}
			if err := steps.Do(t.ctx, steps.DestroyPartition, func(ctx context.Context) error {
				return t.Hardware.DestroyPartition(ctx, part.Placement, part.UUID)
			}); err != nil {
				return fmt.Errorf("remove partition %s: %w", part.Placement, err)
			}
		}
		return nil
	})
}

// requestDaemons requests those of the MPS daemons that the holders use, with the limits that they need, and ends the
// others.
func (t *tx) requestDaemons(ids []string, holders []sharing.Holder) error {
	unused := slices.Clone(ids)
	for _, d := range sharing.Daemons(ids, holders) {
		unused = slices.DeleteFunc(unused, func(id string) bool { return id == d.ID })
		d.SharedMemory = t.DaemonMemory
		if err := t.step(steps.RequestDaemon, func() error { return t.Daemons.Request(d) }); err != nil {
			return fmt.Errorf("ask for MPS daemon %s: %w", d.ID, err)
		}
	}
	for _, id := range unused {
		if err := t.step(steps.ReleaseDaemon, func() error { return t.Daemons.Release(id) }); err != nil {
			return fmt.Errorf("end MPS daemon %s: %w", id, err)
		}
	}
	return nil
}
