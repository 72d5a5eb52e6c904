// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims/change"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// ErrRunning means that a container still runs with the claim. The message names it.
var ErrRunning = errors.New("the claim is released when it has ended")

// ErrNotRestored means that settings and MPS daemons of the claim's GPUs stay as they are, because a claim with an
// unreadable record may need them; or that what was changed on a GPU cannot be undone, because it does not answer or
// does not come back from a virtual machine. Nothing else is left of the claim but its record, in phase Releasing, with
// such GPUs only. Unprepare can be called again when that has ended.
var ErrNotRestored = errors.New("the settings of its GPUs are not restored")

// Unprepare releases the devices of the claim. It is no error if it has none. Errors: ErrRunning, ErrNotRestored,
// checkpoint.ErrUnreadable and those of Hardware.
func (p *Preparer) Unprepare(ctx context.Context, claim sharing.Claim) error {
	return steps.Do(ctx, steps.Unprepare, func(ctx context.Context) (err error) {
		t := p.begin(ctx, claim)
		defer t.end()
		for again := true; again; again = t.again(err) {
			if err = t.release(nil); errors.Is(err, checkpoint.ErrNotFound) {
				err = t.removeOrphan()
			}
		}
		return err
	})
}

// release is one attempt to undo what the record says, independent of today's configuration. It does nothing if another
// call has prepared the claim for the results meanwhile. Error: checkpoint.ErrNotFound.
func (t *tx) release(results []allocation.Result) error {
	defer t.unlock()

	// Lock the GPUs of the record.
	rec, err := t.Records.Get(t.claim.UID)
	if err != nil {
		return err
	}
	if err := t.checkRunning(rec); err != nil {
		return err
	}
	if err := t.lockRecorded(rec); err != nil || results != nil && serves(t.record, results) {
		return err
	}

	// Read what is there, if anything was changed. The GPUs may be unknown, and so may the other claims on them.
	var noGPUs, noOthers error
	changed, rebooted := t.record.Plan.ChangesHardware(), t.record.BootID != t.BootID
	if changed {
		t.inventory, noGPUs = t.Devices()
		noOthers = t.readOthers(t.record.Plan.Held())
	}

	// Write that the claim is being released. If nothing is altered, an interrupted release leaves it prepared, or gone
	// but for its spec. Otherwise the spec goes first: what follows may fail for as long as another claim's record
	// cannot be read.
	alters := noOthers != nil || changed && (rebooted || sharing.Alters(t.record.Plan, t.others))
	if alters && t.record.Phase != checkpoint.Releasing {
		t.record.Phase = checkpoint.Releasing
		if err := t.put(); err != nil {
			return err
		}
	}
	if alters {
		if err := t.removeSpec(); err != nil {
			return err
		}
	}

	if t.record.Plan.LocalIPC != 0 {
		if err := t.removeLocalIPC(); err != nil {
			return err
		}
	}

	// Reduce daemons, partitions and GPUs to what the other claims need. GPUs that have moved on the PCI bus are left
	// alone: they may have other claims, under their present names.
	if noOthers != nil {
		return t.releasePartitions(noOthers)
	}
	if err := t.requestDaemons(t.record.Plan.DaemonIDs(), t.others); err != nil {
		return err
	}
	if rebooted && noGPUs != nil {
		return fmt.Errorf("%w: %w", ErrNotRestored, noGPUs)
	}
	plan := t.record.Plan.InPlace(t.inventory)
	if rebooted { // neither partitions, vGPUs nor drivers survive a reboot
		plan.Assignments = slices.DeleteFunc(plan.Assignments, sharing.Assignment.MakesPartition)
		plan.Assignments = slices.DeleteFunc(plan.Assignments, sharing.Assignment.Binds)
		plan.Assignments = slices.DeleteFunc(plan.Assignments, sharing.Assignment.MakesVGPU)
	}
	left, why, err := t.undo(plan, t.restore)
	if err != nil {
		return err
	}
	if why != nil {
		err := t.putPlan(t.record.Plan.Of(left...))
		if err == nil && results != nil {
			return t.setAside(left)
		}
		return errors.Join(fmt.Errorf("%w: %w", ErrNotRestored, why), err)
	}
	if err := t.step(steps.DeleteRecord, func() error { return t.Records.Delete(t.record) }); err != nil || alters {
		return err
	}
	// The spec goes last, because then containerd reads all specs again, and there is one processor less.
	if err := t.removeSpec(); err != nil {
		return err
	}
	t.unlock()
	return t.writeSpecAgain()
}

// setAside leaves the claim without a record, because it has been allocated again: what it has left on GPUs is released
// as that of claims which nobody uses any more, one for each GPU.
func (t *tx) setAside(left []gpu.UUID) error {
	for _, id := range left {
		rec := t.record
		rec.Plan = rec.Plan.Of(id)
		rec.Claim.UID += types.UID("-" + gpu.ParentName(rec.Plan.Assignments[0].Device))
		if err := t.step(steps.WriteRecord, func() error { return t.Records.Put(rec) }); err != nil {
			return err
		}
	}
	return t.step(steps.DeleteRecord, func() error { return t.Records.Delete(t.record) })
}

// checkRunning refuses to release a claim while a container runs with it. After a forced deletion of a pod, the kubelet
// unprepares its claims although containers may still run. Error: ErrRunning.
func (t *tx) checkRunning(rec checkpoint.PreparedClaim) error {
	if rec.Phase == checkpoint.Releasing || rec.BootID != t.BootID || t.Running == nil {
		return nil
	}
	return t.step(steps.FindUsers, func() error {
		running, err := t.Running(rec.Claim)
		if len(running) == 0 {
			return err
		}
		runs := fmt.Errorf("%s still runs: %w", strings.Join(running, ", "), ErrRunning)
		if err != nil {
			return fmt.Errorf("%w; %w", runs, err)
		}
		return runs
	})
}

// releasePartitions undoes what no other claim can use, because the other claims are unknown: the partitions and vGPUs
// that the plan has made, the MPS daemons inside of partitions, and the GPUs that virtual machines have. It records
// that: a partition that somebody makes at the same placement later is not the driver's. Errors: ErrNotRestored,
// unknown.
func (t *tx) releasePartitions(unknown error) error {
	if !errors.Is(unknown, checkpoint.ErrUnreadable) {
		return unknown
	}
	daemons := slices.DeleteFunc(t.record.Plan.DaemonIDs(), func(id string) bool { return !gpu.IsPartition(id) })
	if err := t.requestDaemons(daemons, nil); err != nil {
		return err
	}
	if t.record.BootID == t.BootID {
		_, why, err := t.undo(t.record.Plan, func(sharing.Plan) error { return nil })
		if err != nil {
			return err
		}
		if why != nil {
			return fmt.Errorf("%w: %w", ErrNotRestored, errors.Join(unknown, why))
		}
	}
	if err := t.putPlan(t.record.Plan.Unbegun()); err != nil {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNotRestored, unknown)
}

// undo takes the plan's GPUs and vGPUs from virtual machines, removes its partitions, and restores the settings of its
// GPUs, of all GPUs in parallel. left are the GPUs on which that cannot be done, and why says what prevents it. Other
// errors end the attempt: gpu.ErrBusy, and that the call has ended.
func (t *tx) undo(plan sharing.Plan, restore func(sharing.Plan) error) (left []gpu.UUID, why, err error) {
	var mu sync.Mutex
	why = change.Each(plan.GPUs(), func(id gpu.UUID) error {
		of := plan.Of(id)
		undo := func() error {
			if err := errors.Join(change.RemoveVGPUs(t.ctx, t.Passthrough, of),
				change.ReturnVFIO(t.ctx, t.Passthrough, of),
				change.DestroyPartitions(t.ctx, t.Hardware, of)); err != nil {
				return err
			}
			return restore(of)
		}
		err := undo()
		if err != nil && !errors.Is(err, gpu.ErrBusy) && t.ctx.Err() == nil {
			err = undo() // one call may fail by chance
		}
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			left = append(left, id)
		}
		return err
	})
	if errors.Is(why, gpu.ErrBusy) || t.ctx.Err() != nil {
		return nil, nil, why
	}
	for _, id := range left {
		if t.NotRestored != nil {
			t.NotRestored(id)
		}
	}
	return left, why, nil
}

// removeSpec removes the CDI spec of the claim.
func (t *tx) removeSpec() error {
	return t.step(steps.RemoveClaimSpec, func() error { return t.Specs.RemoveClaim(t.claim.UID) })
}

// removeOrphan removes the spec of a claim without a record: the plugin was killed between the two. It also removes the
// directory for local IPC, in case somebody has removed the record by hand.
func (t *tx) removeOrphan() error {
	if err := errors.Join(t.removeSpec(), t.LocalIPC.remove(t.claim.UID)); err != nil {
		return err
	}
	return t.writeSpecAgain()
}

// writeSpecAgain writes the spec that was removed if the claim has a record by now. If Prepare runs meanwhile, either
// it writes the spec after it was removed, or this finds its record.
func (t *tx) writeSpecAgain() error {
	rec, err := t.Records.Get(t.claim.UID)
	if errors.Is(err, checkpoint.ErrNotFound) {
		return nil
	}
	if err != nil || rec.Phase != checkpoint.Prepared {
		return err // a later step writes the spec, or removes it
	}
	return t.prepare(nil, nil)
}

// restore sets what the plan has changed of its GPUs to what the other claims need.
func (t *tx) restore(plan sharing.Plan) error {
	return change.Set(t.ctx, t.Hardware, plan.GPUs(), func(id gpu.UUID) gpu.DesiredState {
		return sharing.StateWithout(id, plan, t.others)
	})
}

// EndUnusedDaemons ends MPS daemons that no record names, and sets the compute mode of their GPUs back. A crash may
// leave some, and so does a person who removes a record that cannot be read.
func (p *Preparer) EndUnusedDaemons(ctx context.Context) error {
	requested, err := p.Daemons.Requested()
	errs := []error{err}
	for _, d := range requested {
		t := &tx{Preparer: p, ctx: ctx}
		errs = append(errs, t.endIfUnused(d.Daemon))
	}
	return errors.Join(errs...)
}

// endIfUnused ends the daemon unless a claim uses it. Its request is the record of what was changed for it, so it ends
// last.
func (t *tx) endIfUnused(d mps.Daemon) (err error) {
	defer t.unlock()
	if t.inventory, err = t.Devices(); err != nil {
		return err
	}
	var plan sharing.Plan // what a claim that uses the daemon has changed of GPUs
	for _, id := range d.GPUs {
		if gpu.IsPartition(d.ID) {
			break
		}
		device, _ := t.inventory.Present().FindUUID(id)
		plan.Assignments = append(plan.Assignments, sharing.Assignment{Device: cmp.Or(device.Name, d.ID), GPU: id,
			Settings: gpu.Settings{Mode: gpu.ExclusiveProcess}})
	}
	devices := plan.Devices()
	if !slices.Contains(devices, d.ID) { // its GPU has another name now, or it is that of a partition
		devices = append(devices, d.ID)
	}
	if err := t.lock(devices); err != nil {
		return err
	}
	if err := t.readOthers(devices); err != nil {
		return err
	}
	if len(sharing.Daemons([]string{d.ID}, t.others)) == 0 {
		if err := t.restore(plan); err != nil {
			return fmt.Errorf("end MPS daemon %s: %w", d.ID, err)
		}
	}
	return t.requestDaemons([]string{d.ID}, t.others)
}
