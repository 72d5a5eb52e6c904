// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// decide plans a claim without a record, under the locks of its devices, and applies the plan.
func (p *Preparer) decide(
	ctx context.Context, wait *wait, claim *resourceapi.ResourceClaim, results []allocation.Result,
) (checkpoint.Record, error) {
	var devices, held []string
	for _, r := range results {
		devices = append(devices, r.Device)
		if !r.AdminAccess {
			held = append(held, r.Device)
		}
	}
	unlock, err := p.lock(ctx, devices)
	if err != nil {
		return checkpoint.Record{}, err
	}
	defer unlock()
	if _, err := p.Records.Get(claim.UID); !errors.Is(err, checkpoint.ErrNotFound) {
		unlock() // another call, for another pod with the claim, has recorded it meanwhile
		return p.tryPrepare(ctx, wait, claim, results)
	}
	inv, err := p.Devices()
	if err != nil {
		return checkpoint.Record{}, err
	}
	others, err := p.holders(ctx, held, claim.UID)
	if err != nil {
		return checkpoint.Record{}, err
	}
	plan, err := sharing.NewPlan(results, inv, others)
	if err != nil {
		return checkpoint.Record{}, err
	}
	if plan, err = p.checkContainers(ctx, claim, plan); err != nil {
		return checkpoint.Record{}, err
	}
	rec := checkpoint.Record{Phase: checkpoint.Preparing, BootID: p.BootID, Claim: claimOf(claim), Plan: plan}
	if sharing.Alters(plan, others) {
		if err := p.checkPlacements(ctx, plan); err != nil {
			return checkpoint.Record{}, err
		}
		if err := p.put(ctx, rec); err != nil {
			return checkpoint.Record{}, err
		}
	}
	return p.complete(ctx, wait, inv, rec, others, unlock)
}

// ensure brings hardware, daemons and CDI specs to the recorded state of a claim. It changes only what differs: after a
// reboot, an update of the driver, a reset or renumbering of GPUs, or a manual change of files. Error:
// checkpoint.ErrNotFound when the claim has been released, or is being released.
func (p *Preparer) ensure(ctx context.Context, wait *wait, claim sharing.Claim) (checkpoint.Record, error) {
	inv, err := p.Devices()
	if err != nil {
		return checkpoint.Record{}, err
	}
	rec, unlock, err := p.lockHeld(ctx, claim)
	if err != nil {
		return checkpoint.Record{}, err
	}
	defer unlock()
	if err := rec.Plan.CheckInPlace(inv); err != nil {
		return checkpoint.Record{}, err
	}
	others, err := p.holders(ctx, rec.Plan.Held(), rec.Claim.UID)
	if err != nil {
		return checkpoint.Record{}, err
	}
	if rec.BootID != p.BootID && rec.Plan.ChangesHardware() {
		rec.Plan = rec.Plan.Unbegun() // partitions do not survive a reboot
		rec.BootID, rec.Phase = p.BootID, checkpoint.Preparing
		if err := p.put(ctx, rec); err != nil {
			return checkpoint.Record{}, err
		}
	}
	return p.complete(ctx, wait, inv, rec, others, unlock)
}

// complete applies the plan: hardware, daemons, CDI specs, record. The caller holds the locks, and unlock releases
// them. It waits for daemons without the locks, so the claim is recorded before. Then it continues with the record that
// it finds.
func (p *Preparer) complete(
	ctx context.Context, wait *wait, inv inventory.Inventory, rec checkpoint.Record, others []sharing.Holder,
	unlock func(),
) (checkpoint.Record, error) {
	if err := p.apply(ctx, inv, &rec, others); err != nil {
		return checkpoint.Record{}, err
	}
	daemons := rec.Plan.DaemonIDs()
	if !slices.ContainsFunc(daemons, func(id string) bool { return p.Daemons.Check(id) != nil }) {
		return p.finish(ctx, inv, rec)
	}
	if _, err := p.Records.Get(rec.Claim.UID); errors.Is(err, checkpoint.ErrNotFound) {
		if err := p.put(ctx, rec); err != nil {
			return checkpoint.Record{}, err
		}
	}
	unlock()
	for _, id := range daemons {
		if err := steps.Do(ctx, steps.AwaitDaemon, func(context.Context) error {
			return wait.await(p.Daemons, id)
		}); err != nil {
			return checkpoint.Record{}, err
		}
	}
	rec, unlock, err := p.lockHeld(ctx, rec.Claim)
	if err != nil {
		return checkpoint.Record{}, err
	}
	defer unlock()
	return p.finish(ctx, inv, rec)
}

// apply changes GPUs and daemons for the plan and for the other claims on the same GPUs. It records the UUIDs of the
// partitions.
func (p *Preparer) apply(ctx context.Context, inv inventory.Inventory, rec *checkpoint.Record,
	others []sharing.Holder) error {
	all := append(slices.Clone(others), sharing.Holder{Claim: rec.Claim, Plan: rec.Plan})
	if err := p.setEach(ctx, rec.Plan, func(id gpu.UUID) gpu.State { return sharing.State(id, all, inv) }); err != nil {
		return err
	}
	if err := p.makePartitions(ctx, rec); err != nil {
		return err
	}
	all[len(all)-1].Plan = rec.Plan
	return p.requestDaemons(ctx, rec.Plan.DaemonIDs(), all)
}

// setEach sets the states of the plan's GPUs in parallel.
func (p *Preparer) setEach(ctx context.Context, plan sharing.Plan, state func(gpu.UUID) gpu.State) error {
	return each(plan.GPUs(), func(id gpu.UUID) error {
		s := state(id)
		if s == (gpu.State{}) {
			return nil
		}
		if err := p.Hardware.Set(ctx, id, s); err != nil {
			return fmt.Errorf("GPU %s: %w", id, err)
		}
		return nil
	})
}

// makePartitions creates the partitions of the plan. Before they are recorded as begun, a partition at a placement
// belongs to somebody else.
func (p *Preparer) makePartitions(ctx context.Context, rec *checkpoint.Record) error {
	partitions := rec.Plan.Partitions()
	if len(partitions) == 0 {
		return nil
	}
	if err := p.checkPlacements(ctx, rec.Plan); err != nil {
		return err
	}
	if err := p.putPlan(ctx, rec, rec.Plan.Begun()); err != nil {
		return err
	}
	made := map[gpu.Placement]gpu.UUID{}
	var mu sync.Mutex
	if err := each(rec.Plan.GPUs(), func(id gpu.UUID) error {
		for _, part := range partitions[id] { // partitions of one GPU are created one after the other
			var uuid gpu.UUID
			if err := steps.Do(ctx, steps.CreatePartition, func(ctx context.Context) (err error) {
				uuid, err = p.Hardware.CreatePartition(ctx, part.Placement, part.UUID)
				return err
			}); err != nil {
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
	return p.putPlan(ctx, rec, rec.Plan.Made(made))
}

// checkPlacements fails if foreign partitions overlap those that the plan makes and has not begun.
func (p *Preparer) checkPlacements(ctx context.Context, plan sharing.Plan) error {
	var errs []error
	for _, a := range plan.Assignments {
		if !a.MakesPartition() || a.Partition.MayExist() {
			continue
		}
		if err := p.Hardware.CheckPlacement(ctx, a.Partition.Placement); err != nil {
			errs = append(errs, fmt.Errorf("partition %s: %w", a.Partition.Placement, err))
		}
	}
	return errors.Join(errs...)
}

// checkContainers refuses a plan if a container of the claim could not be kept within its limits.
func (p *Preparer) checkContainers(ctx context.Context, claim *resourceapi.ResourceClaim,
	plan sharing.Plan) (sharing.Plan, error) {
	if !plan.Limited() && !plan.Isolated() {
		return plan, nil
	}
	containers, err := p.Containers(ctx, claim)
	if err != nil {
		return plan, fmt.Errorf("find the containers of the claim: %w", err)
	}
	for _, c := range containers {
		if err := plan.CheckContainer(c); err != nil {
			return plan, err
		}
	}
	return plan.WithUnmounted(containers), nil
}

// finish writes the CDI specs of the plan and records the claim as prepared.
func (p *Preparer) finish(ctx context.Context, inv inventory.Inventory, rec checkpoint.Record) (checkpoint.Record,
	error) {
	names, err := p.writeSpecs(ctx, inv, rec)
	if err != nil {
		return checkpoint.Record{}, err
	}
	done := rec
	done.Phase, done.BootID = checkpoint.Prepared, p.BootID
	done.Plan.Assignments = slices.Clone(rec.Plan.Assignments)
	for i := range done.Plan.Assignments {
		done.Plan.Assignments[i].CDI = names[i]
	}
	if reflect.DeepEqual(done, rec) {
		return rec, nil
	}
	if err := p.put(ctx, done); err != nil {
		return checkpoint.Record{}, err
	}
	// Before there was a record, release may have removed the spec of an interrupted Prepare, which was this one.
	if there, err := p.Specs.HasClaim(rec.Claim.UID); err != nil || there {
		return done, err
	}
	_, err = p.writeSpecs(ctx, inv, done)
	return done, err
}

// putPlan records the plan if it has changed. The CDI specs must be written again then, so the phase is Preparing.
func (p *Preparer) putPlan(ctx context.Context, rec *checkpoint.Record, plan sharing.Plan) error {
	if reflect.DeepEqual(plan, rec.Plan) {
		return nil
	}
	rec.Plan, rec.Phase = plan, checkpoint.Preparing
	return p.put(ctx, *rec)
}

// put writes the record unless the context has ended: the kubelet may already have unprepared the claim.
func (p *Preparer) put(ctx context.Context, rec checkpoint.Record) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := steps.Do(ctx, steps.WriteRecord, func(context.Context) error { return p.Records.Put(rec) }); err != nil {
		return fmt.Errorf("record the claim: %w", err)
	}
	return nil
}

// holders returns the other claims on the GPUs of the devices that a claim holds, without what they had of GPUs that
// have moved on the PCI bus. Devices with admin access are not among them, so unreadable records about those do not
// matter. The caller holds the locks. Error: checkpoint.ErrUnreadable.
func (p *Preparer) holders(ctx context.Context, held []string, except types.UID) (found []sharing.Holder, err error) {
	if len(held) == 0 {
		return nil, nil
	}
	err = steps.Do(ctx, steps.FindHolders, func(context.Context) error {
		found, err = p.Records.Holders(held, except)
		return err
	})
	if inv, unknown := p.Devices(); unknown == nil {
		found = sharing.InPlace(found, inv)
	}
	return found, err
}

// lock locks the physical GPU of each device. unlock may be called twice.
func (p *Preparer) lock(ctx context.Context, devices []string) (unlock func(), err error) {
	err = steps.Do(ctx, steps.LockDevices, func(ctx context.Context) error {
		unlock, err = p.Records.Lock(ctx, devices)
		return err
	})
	if err != nil && unlock != nil {
		unlock() // an observer failed
	}
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(unlock), nil
}

// lockHeld is lockClaim for a claim that is not being released. Error: checkpoint.ErrNotFound.
func (p *Preparer) lockHeld(ctx context.Context, claim sharing.Claim) (rec checkpoint.Record, unlock func(),
	err error) {
	rec, unlock, err = p.lockClaim(ctx, claim.UID)
	if err == nil && rec.Phase == checkpoint.Releasing {
		unlock()
		return checkpoint.Record{}, nil, fmt.Errorf("claim %s is being released: %w", claim, checkpoint.ErrNotFound)
	}
	return rec, unlock, err
}

// lockClaim locks all GPUs of the claim and returns its current record. While this call waited for the locks, another
// one may have released the claim, or prepared it again. Error: checkpoint.ErrNotFound.
func (p *Preparer) lockClaim(ctx context.Context, claim types.UID) (rec checkpoint.Record, unlock func(), err error) {
	for {
		before, err := p.Records.Get(claim)
		if err != nil {
			return checkpoint.Record{}, nil, err
		}
		devices := before.Plan.Devices()
		unlock, err := p.lock(ctx, devices)
		if err != nil {
			return checkpoint.Record{}, nil, err
		}
		now, err := p.Records.Get(claim)
		if err == nil && slices.Equal(now.Plan.Devices(), devices) {
			return now, unlock, nil
		}
		unlock()
		if err != nil {
			return checkpoint.Record{}, nil, err
		}
	}
}

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
