// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// release undoes what the record says, independent of today's configuration.
func (p *Preparer) release(ctx context.Context, claim types.UID) error {
	removeSpec := func() error {
		return steps.Do(ctx, steps.RemoveClaimSpec, func(context.Context) error { return p.Specs.RemoveClaim(claim) })
	}
	if err := p.checkRunning(ctx, claim); err != nil {
		return err
	}
	rec, unlock, err := p.lockClaim(ctx, claim)
	if errors.Is(err, checkpoint.ErrNotFound) {
		return removeSpec() // Prepare may have been interrupted between spec and record
	}
	if err != nil {
		return err
	}
	defer unlock()
	// If no hardware changes, an interrupted release leaves the claim prepared or gone, and needs no phase.
	if rec.Phase != checkpoint.Releasing && rec.Plan.ChangesHardware() {
		rec.Phase = checkpoint.Releasing
		if err := steps.Do(ctx, steps.WriteRecord,
			func(context.Context) error { return p.Records.Put(rec) }); err != nil {
			return fmt.Errorf("record the release: %w", err)
		}
	}
	if err := removeSpec(); err != nil {
		return err
	}
	if rec.Plan.ChangesHardware() {
		if err := p.undo(ctx, rec); err != nil {
			return err
		}
	}
	return steps.Do(ctx, steps.DeleteRecord, func(context.Context) error { return p.Records.Delete(rec) })
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

// undo reduces daemons and GPUs to what the other claims on them need. The caller holds the locks.
func (p *Preparer) undo(ctx context.Context, rec checkpoint.Record) error {
	others, err := p.holders(ctx, rec.Plan.Devices(), rec.Claim.UID)
	if err != nil {
		return err
	}
	if err := p.requestDaemons(ctx, rec.Plan.DaemonIDs(), others); err != nil {
		return err
	}
	if rec.BootID != p.BootID {
		return nil // settings and partitions do not survive a reboot
	}
	if err := p.destroyPartitions(ctx, rec.Plan); err != nil {
		return err
	}
	return p.setEach(ctx, rec.Plan, func(id gpu.UUID) gpu.State { return sharing.StateWithout(id, rec.Plan, others) })
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

// endUnusedDaemons ends MPS daemons that no record names. A crash may leave some.
func (p *Preparer) endUnusedDaemons(ctx context.Context) error {
	wanted, err := p.Daemons.Requested()
	errs := []error{err}
	for _, d := range wanted {
		errs = append(errs, p.endIfUnused(ctx, d.ID))
	}
	return errors.Join(errs...)
}

// endIfUnused ends the daemon unless a claim uses it. Its ID is the name of its first device.
func (p *Preparer) endIfUnused(ctx context.Context, id string) error {
	unlock, err := p.lock(ctx, []string{id})
	if err != nil {
		return err
	}
	defer unlock()
	holders, err := p.holders(ctx, []string{id}, "")
	if err != nil {
		return err
	}
	return p.requestDaemons(ctx, []string{id}, holders)
}
