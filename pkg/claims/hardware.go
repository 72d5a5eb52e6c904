// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// change makes GPUs and daemons agree with the plan and with those of the others on the same GPUs. The caller holds their locks.
// What partitions have become is written down.
func (p *Preparer) change(ctx context.Context, node Node, rec checkpoint.Record, others []sharing.Holder) error {
	if err := node.merge(ctx, rec.Plan); err != nil {
		return err
	}
	if err := p.makePartitions(ctx, node, &rec); err != nil {
		return err
	}
	all := append(slices.Clone(others), sharing.Holder{Claim: rec.Claim, Plan: rec.Plan})
	// Whoever had the GPUs before has left them as they came from the factory, or is among the others and wants the same.
	if err := node.configure(ctx, sharing.Settings(rec.Plan.Changed(), all), nil); err != nil {
		return err
	}
	for _, d := range sharing.Daemons(rec.Plan.DaemonIDs(), all) {
		if err := p.Daemons.Want(d); err != nil {
			return fmt.Errorf("ask for MPS daemon %s: %w", d.ID, err)
		}
	}
	return nil
}

// makePartitions makes those of the plan. What is at their places before they are begun is somebody else's.
func (p *Preparer) makePartitions(ctx context.Context, node Node, rec *checkpoint.Record) error {
	partitions := rec.Plan.Partitions()
	if len(partitions) == 0 {
		return nil
	}
	if err := each(slices.Sorted(maps.Keys(partitions)), func(id gpu.UUID) error {
		if !slices.ContainsFunc(partitions[id], func(p sharing.Partition) bool { return p.UUID == "" }) {
			return nil // they have been made; what is gone is not made again
		}
		if err := node.Hardware.Divide(ctx, id); err != nil {
			return fmt.Errorf("GPU %s: divide it: %w", id, err)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := node.vacant(rec.Plan); err != nil {
		return err
	}
	if err := p.putPlan(ctx, rec, rec.Plan.Begun()); err != nil {
		return err
	}
	made, err := node.create(ctx, partitions)
	if err != nil {
		return err
	}
	return p.putPlan(ctx, rec, rec.Plan.Made(made))
}

// putPlan writes down what has become of the plan. Where that is something else than before, containers have to be told anew.
func (p *Preparer) putPlan(ctx context.Context, rec *checkpoint.Record, plan sharing.Plan) error {
	if reflect.DeepEqual(plan, rec.Plan) {
		return nil
	}
	rec.Plan, rec.Phase = plan, checkpoint.Preparing
	return p.put(ctx, *rec)
}

// changeAgain is change for a claim that is recorded. Error: checkpoint.ErrNotFound.
func (p *Preparer) changeAgain(ctx context.Context, claim sharing.Claim) error {
	node, err := p.Node()
	if err != nil {
		return err
	}
	rec, unlock, err := p.held(ctx, claim)
	if err != nil {
		return err
	}
	defer unlock()
	others, err := p.Records.Holders(rec.Plan.Devices(), rec.Claim.UID)
	if err != nil {
		return err
	}
	if rec.BootID != p.BootID { // from now on there is something to undo again
		rec.Plan = rec.Plan.Unbegun() // partitions are gone with the run of the machine that had them
		rec.BootID, rec.Phase = p.BootID, checkpoint.Preparing
		if err := p.put(ctx, rec); err != nil {
			return err
		}
	}
	return p.change(ctx, node, rec, others)
}

// changeBack makes GPUs and daemons agree with what the others want of them, which may be nothing. The caller holds their locks.
func (p *Preparer) changeBack(ctx context.Context, rec checkpoint.Record) error {
	others, err := p.Records.Holders(rec.Plan.Devices(), rec.Claim.UID)
	if err != nil {
		return err
	}
	ids := rec.Plan.DaemonIDs()
	for _, d := range sharing.Daemons(ids, others) {
		ids = slices.DeleteFunc(ids, func(id string) bool { return id == d.ID })
		if err := p.Daemons.Want(d); err != nil {
			return fmt.Errorf("ask for MPS daemon %s: %w", d.ID, err)
		}
	}
	for _, id := range ids {
		if err := p.Daemons.Unwant(id); err != nil {
			return fmt.Errorf("end MPS daemon %s: %w", id, err)
		}
	}
	if rec.BootID != p.BootID {
		return nil // the machine has forgotten the settings since, and may not even have its driver now
	}
	node, err := p.Node()
	if err != nil {
		return err
	}
	if err := p.destroy(ctx, node, rec.Plan.Partitions()); err != nil {
		return err
	}
	had := sharing.Settings(rec.Plan.Changed(), []sharing.Holder{{Plan: rec.Plan}})
	wanted := sharing.Settings(rec.Plan.Changed(), others)
	maps.DeleteFunc(wanted, func(id gpu.UUID, s gpu.Settings) bool { return s == had[id] })
	return node.configure(ctx, wanted, had)
}

// configure sets all GPUs at once.
func (n Node) configure(ctx context.Context, settings, before map[gpu.UUID]gpu.Settings) error {
	return each(slices.Sorted(maps.Keys(settings)), func(id gpu.UUID) error {
		if err := n.Hardware.Configure(ctx, id, settings[id], before[id]); err != nil {
			return fmt.Errorf("GPU %s: %s: %w", id, settings[id], err)
		}
		return nil
	})
}

// merge makes those GPUs whole that the plan uses as such and that may have been partitioned before.
func (n Node) merge(ctx context.Context, plan sharing.Plan) error {
	ids := slices.DeleteFunc(plan.Whole(), func(id gpu.UUID) bool {
		return !slices.ContainsFunc(n.Inventory, func(d gpu.Device) bool { return d.UUID == id && d.Use.Partitions == gpu.PartitionsDynamic })
	})
	return each(ids, func(id gpu.UUID) error {
		if err := n.Hardware.Merge(ctx, id); err != nil {
			return fmt.Errorf("GPU %s: use it as a whole: %w", id, err)
		}
		return nil
	})
}

// vacant says whether partitions of others are in the way of those that the plan makes and has not begun.
func (n Node) vacant(plan sharing.Plan) error {
	var errs []error
	for _, a := range plan.Assignments {
		if !a.MakesPartition() || a.Partition.MayExist() {
			continue
		}
		if err := n.Hardware.Vacant(a.Partition.Placement); err != nil {
			errs = append(errs, fmt.Errorf("partition %s: %w", a.Partition.Placement, err))
		}
	}
	return errors.Join(errs...)
}

// create makes partitions: those of one GPU one after the other, several GPUs at once.
func (n Node) create(ctx context.Context, partitions map[gpu.UUID][]sharing.Partition) (map[gpu.Placement]gpu.UUID, error) {
	made := map[gpu.Placement]gpu.UUID{}
	var mu sync.Mutex
	err := each(slices.Sorted(maps.Keys(partitions)), func(id gpu.UUID) error {
		for _, part := range partitions[id] {
			uuid, err := n.Hardware.Create(ctx, part.Placement, part.UUID)
			if err != nil {
				return fmt.Errorf("make partition %s: %w", part.Placement, err)
			}
			mu.Lock()
			made[part.Placement] = uuid
			mu.Unlock()
		}
		return nil
	})
	return made, err
}

// destroyPollPeriod is how often Unprepare looks whether the MPS daemon of a partition has ended.
const destroyPollPeriod = 50 * time.Millisecond

// destroy removes partitions as create makes them. An MPS daemon that is ending may still use one for a moment.
func (p *Preparer) destroy(ctx context.Context, node Node, partitions map[gpu.UUID][]sharing.Partition) error {
	deadline := time.Now().Add(p.DaemonPatience)
	return each(slices.Sorted(maps.Keys(partitions)), func(id gpu.UUID) error {
		for _, part := range partitions[id] {
			if !part.MayExist() {
				_ = node.Hardware.Merge(ctx, id) // as far as it goes: others may have partitions of it, or use it
				continue
			}
			err := node.Hardware.Destroy(ctx, part.Placement, part.UUID)
			for errors.Is(err, gpu.ErrBusy) && time.Now().Before(deadline) && ctx.Err() == nil {
				time.Sleep(destroyPollPeriod)
				err = node.Hardware.Destroy(ctx, part.Placement, part.UUID)
			}
			if err != nil {
				return fmt.Errorf("remove partition %s: %w", part.Placement, err)
			}
		}
		return nil
	})
}

// each does it for all GPUs at once, because each may take its time. The error reports every one that failed.
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

// endUnusedDaemons ends MPS daemons that no record speaks of, which a crash may have left.
func (p *Preparer) endUnusedDaemons(ctx context.Context) error {
	wanted, err := p.Daemons.Wanted()
	errs := []error{err}
	for _, d := range wanted {
		errs = append(errs, p.endIfUnused(ctx, d.ID))
	}
	return errors.Join(errs...)
}

// endIfUnused ends the daemon unless a claim on its first device uses it, whose name is the ID of the daemon.
func (p *Preparer) endIfUnused(ctx context.Context, id string) error {
	unlock, err := p.Records.Lock(ctx, []string{id})
	if err != nil {
		return err
	}
	defer unlock()
	holders, err := p.Records.Holders([]string{id}, "")
	if err != nil || len(sharing.Daemons([]string{id}, holders)) > 0 {
		return err
	}
	return p.Daemons.Unwant(id)
}
