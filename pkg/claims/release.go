// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// release undoes what the record says, independent of today's configuration.
func (p *Preparer) release(ctx context.Context, wait *wait, claim types.UID) error {
	err := p.releaseUnless(ctx, claim, func(checkpoint.Record) bool { return false })
	if errors.Is(err, checkpoint.ErrNotFound) {
		return p.removeOrphan(ctx, wait, claim)
	}
	return err
}

// removeOrphan removes the spec of a claim without a record: Prepare may have been interrupted between the two. If
// Prepare runs again meanwhile, either it finds that the spec is missing, or this finds its record.
func (p *Preparer) removeOrphan(ctx context.Context, wait *wait, claim types.UID) error {
	if err := p.removeSpec(ctx, claim); err != nil {
		return err
	}
	rec, err := p.Records.Get(claim)
	if errors.Is(err, checkpoint.ErrNotFound) {
		return nil
	}
	if err != nil || rec.Phase != checkpoint.Prepared {
		return err // a later step writes the spec, or removes it
	}
	_, err = p.ensure(ctx, wait, rec.Claim)
	return err
}

// releaseUnless undoes what the record says, unless keep is true for it under the locks. Error: checkpoint.ErrNotFound.
func (p *Preparer) releaseUnless(ctx context.Context, claim types.UID, keep func(checkpoint.Record) bool) error {
	if err := p.checkRunning(ctx, claim); err != nil {
		return err
	}
	rec, unlock, err := p.lockClaim(ctx, claim)
	if err != nil {
		return err
	}
	defer unlock()
	if keep(rec) {
		return nil
	}
	return p.releaseLocked(ctx, rec)
}

// releaseLocked undoes the record. The caller holds the locks.
func (p *Preparer) releaseLocked(ctx context.Context, rec checkpoint.Record) error {
	var others []sharing.Holder
	var unknown error
	if rec.Plan.ChangesHardware() {
		others, unknown = p.holders(ctx, rec.Plan.Held(), rec.Claim.UID)
	}
	// If nothing changes, an interrupted release leaves the claim prepared or gone, and needs no phase.
	changes := unknown != nil || sharing.Alters(rec.Plan, others) ||
		rec.Plan.ChangesHardware() && rec.BootID != p.BootID
	if rec.Phase != checkpoint.Releasing && changes {
		rec.Phase = checkpoint.Releasing
		if err := p.putReleasing(ctx, rec); err != nil {
			return err
		}
	}
	if err := p.removeSpec(ctx, rec.Claim.UID); err != nil {
		return err
	}
	if rec.Plan.ChangesHardware() {
		if err := p.undo(ctx, rec, others, unknown); err != nil {
			return err
		}
	}
	return steps.Do(ctx, steps.DeleteRecord, func(context.Context) error { return p.Records.Delete(rec) })
}

// putReleasing writes the record. Unlike put it does so even if the context has ended, because nobody prepares a claim
// that is being released.
func (p *Preparer) putReleasing(ctx context.Context, rec checkpoint.Record) error {
	if err := steps.Do(ctx, steps.WriteRecord, func(context.Context) error { return p.Records.Put(rec) }); err != nil {
		return fmt.Errorf("record the release: %w", err)
	}
	return nil
}

func (p *Preparer) removeSpec(ctx context.Context, claim types.UID) error {
	return steps.Do(ctx, steps.RemoveClaimSpec, func(context.Context) error { return p.Specs.RemoveClaim(claim) })
}

// checkRunning refuses to release a claim while a container runs with it. After a forced deletion of a pod, the kubelet
// unprepares its claims although containers may still run. Error: ErrRunning.
func (p *Preparer) checkRunning(ctx context.Context, claim types.UID) error {
	rec, err := p.Records.Get(claim)
	if err != nil || rec.Phase == checkpoint.Releasing || rec.BootID != p.BootID || p.Running == nil {
		return nil //nolint:nilerr // release reports a record that cannot be read
	}
	return steps.Do(ctx, steps.FindUsers, func(context.Context) error {
		running, err := p.Running(rec.Claim)
		if err == nil && len(running) > 0 {
			err = fmt.Errorf("%s still runs: %w", strings.Join(running, ", "), ErrRunning)
		}
		return err
	})
}

// undo reduces daemons and GPUs to what the other claims on them need. The caller holds the locks. If these claims are
// unknown, because a record cannot be read, it undoes only what no other claim can use. GPUs that have moved on the PCI
// bus are left alone: they may have other claims, under their present names. Error: ErrNotRestored.
func (p *Preparer) undo(ctx context.Context, rec checkpoint.Record, others []sharing.Holder, unknown error) error {
	if errors.Is(unknown, checkpoint.ErrUnreadable) {
		if err := p.undoPartitions(ctx, rec); err != nil {
			return err
		}
		return fmt.Errorf("%w: %w", ErrNotRestored, unknown)
	}
	if unknown != nil {
		return unknown
	}
	if err := p.requestDaemons(ctx, rec.Plan.DaemonIDs(), others); err != nil {
		return err
	}
	inv, err := p.Devices()
	if rec.BootID != p.BootID {
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNotRestored, err)
		}
		return p.undoSinceReboot(ctx, rec.Plan.InPlace(inv), others)
	}
	plan := rec.Plan.InPlace(inv)
	if err := p.destroyPartitions(ctx, plan); err != nil {
		return err
	}
	return p.setEach(ctx, plan, func(id gpu.UUID) gpu.State { return sharing.StateWithout(id, plan, others) })
}

// undoSinceReboot undoes a claim that was not prepared again since a reboot. Partitions and settings do not survive it,
// but another claim with the same settings may have been prepared since, and relied on this one to undo them. Error:
// ErrNotRestored, because the GPUs need not be there yet.
func (p *Preparer) undoSinceReboot(ctx context.Context, plan sharing.Plan, others []sharing.Holder) error {
	if err := p.setEach(ctx, plan, func(id gpu.UUID) gpu.State {
		return gpu.State{Settings: sharing.StateWithout(id, plan, others).Settings}
	}); err != nil {
		return fmt.Errorf("%w: %w", ErrNotRestored, err)
	}
	return nil
}

// undoPartitions ends the MPS daemons inside the claim's partitions, removes those that the plan has made, and records
// that: a partition that somebody makes at the same placement later is not the driver's.
func (p *Preparer) undoPartitions(ctx context.Context, rec checkpoint.Record) error {
	daemons := slices.DeleteFunc(rec.Plan.DaemonIDs(), func(id string) bool { return !gpu.IsPartition(id) })
	if err := p.requestDaemons(ctx, daemons, nil); err != nil {
		return err
	}
	if rec.BootID == p.BootID {
		if err := p.destroyPartitions(ctx, rec.Plan); err != nil {
			return err
		}
	}
	undone := rec.Plan.Unbegun()
	if reflect.DeepEqual(undone, rec.Plan) {
		return nil
	}
	rec.Plan = undone
	return p.putReleasing(ctx, rec)
}

// destroyPartitions removes the partitions that the plan has made.
func (p *Preparer) destroyPartitions(ctx context.Context, plan sharing.Plan) error {
	partitions := plan.Partitions()
	return each(plan.GPUs(), func(id gpu.UUID) error {
		for _, part := range partitions[id] {
			if !part.MayExist() {
				continue
			}
			if err := steps.Do(ctx, steps.DestroyPartition, func(ctx context.Context) error {
				return p.Hardware.DestroyPartition(ctx, part.Placement, part.UUID)
			}); err != nil {
				return fmt.Errorf("remove partition %s: %w", part.Placement, err)
			}
		}
		return nil
	})
}

// requestDaemons requests those of the MPS daemons that the holders use, with the limits that they need, and ends the
// others.
func (p *Preparer) requestDaemons(ctx context.Context, ids []string, holders []sharing.Holder) error {
	unused := slices.Clone(ids)
	for _, d := range sharing.Daemons(ids, holders) {
		unused = slices.DeleteFunc(unused, func(id string) bool { return id == d.ID })
		d.SharedMemory = p.DaemonMemory
		if err := steps.Do(ctx, steps.RequestDaemon,
			func(context.Context) error { return p.Daemons.Request(d) }); err != nil {
			return fmt.Errorf("ask for MPS daemon %s: %w", d.ID, err)
		}
	}
	for _, id := range unused {
		if err := steps.Do(ctx, steps.ReleaseDaemon,
			func(context.Context) error { return p.Daemons.Release(id) }); err != nil {
			return fmt.Errorf("end MPS daemon %s: %w", id, err)
		}
	}
	return nil
}

// EndUnusedDaemons ends MPS daemons that no record names, and sets the compute mode of their GPUs back. A crash may
// leave some, and so does a person who removes a record that cannot be read.
func (p *Preparer) EndUnusedDaemons(ctx context.Context) error {
	wanted, err := p.Daemons.Requested()
	errs := []error{err}
	for _, d := range wanted {
		errs = append(errs, p.endIfUnused(ctx, d))
	}
	return errors.Join(errs...)
}

// endIfUnused ends the daemon unless a claim uses it. Its request is the record of what was changed for it, so it ends
// last.
func (p *Preparer) endIfUnused(ctx context.Context, d mps.Daemon) error {
	inv, err := p.Devices()
	if err != nil {
		return err
	}
	plan := planOf(d, inv)
	devices := plan.Devices()
	if !slices.Contains(devices, d.ID) { // its GPU has another name now, or it is that of a partition
		devices = append(devices, d.ID)
	}
	unlock, err := p.lock(ctx, devices)
	if err != nil {
		return err
	}
	defer unlock()
	holders, err := p.holders(ctx, devices, "")
	if err != nil {
		return err
	}
	if len(sharing.Daemons([]string{d.ID}, holders)) == 0 {
		if err := p.setEach(ctx, plan, func(id gpu.UUID) gpu.State {
			return sharing.StateWithout(id, plan, holders)
		}); err != nil {
			return fmt.Errorf("end MPS daemon %s: %w", d.ID, err)
		}
	}
	return p.requestDaemons(ctx, []string{d.ID}, holders)
}

// planOf returns what a claim that uses the daemon has changed of GPUs. It is nothing if the daemon is for a partition.
func planOf(d mps.Daemon, inv inventory.Inventory) sharing.Plan {
	var plan sharing.Plan
	if gpu.IsPartition(d.ID) {
		return plan
	}
	for _, id := range d.GPUs {
		device, _ := inv.Present().FindUUID(id)
		plan.Assignments = append(plan.Assignments, sharing.Assignment{Device: cmp.Or(device.Name, d.ID), GPU: id,
			Settings: gpu.Settings{Mode: gpu.ExclusiveProcess}})
	}
	return plan
}
