// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims/access"
	"github.com/gpudra/gpu-dra-driver/pkg/claims/change"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// Prepare makes the devices of an allocated claim usable for containers, and returns its record. It may be repeated. A
// claim that has been allocated again since is released first. After an error it can be called again. Errors:
// allocation.ErrNotAllocated, *allocation.ConfigError, *sharing.Refusal, checkpoint.ErrUnreadable, mps.ErrNotReady and
// those of Hardware.
func (p *Preparer) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (rec checkpoint.PreparedClaim,
	err error) {
	err = steps.Do(ctx, steps.Prepare, func(ctx context.Context) error {
		results, err := allocation.Results(claim, p.Driver)
		if err != nil || len(results) == 0 {
			return err
		}
		t := p.begin(ctx, sharing.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID})
		defer t.end()
		for again := true; again; again = t.again(err) {
			err = t.prepare(claim, results)
		}
		rec = t.record
		return err
	})
	return rec, err
}

// prepare is one attempt of Prepare. A recorded claim needs no results. Of such a claim only what differs is changed:
// after a reboot, an update of the driver, a reset or renumbering of GPUs, or a manual change of files. Error:
// checkpoint.ErrNotFound if the claim has been released, or is being released.
func (t *tx) prepare(claim *resourceapi.ResourceClaim, results []allocation.Result) error {
	defer t.unlock()

	// Lock the GPUs of the record, or those of the results.
	rec, err := t.Records.Get(t.claim.UID)
	isNew := errors.Is(err, checkpoint.ErrNotFound) && results != nil
	switch {
	case isNew:
		err = t.lockNew(results)
	case err == nil && results != nil && !serves(rec, results):
		err = t.releaseFormer(results)
	case err == nil:
		err = t.lockHeld(rec)
	}
	if err != nil {
		return err
	}

	// Read what is there and decide. The decision is on disk before anything changes.
	if t.inventory, err = t.Devices(); err != nil {
		return err
	}
	if isNew {
		err = t.decide(claim, results)
	} else {
		err = t.recheck()
	}
	if err != nil {
		return err
	}

	// Change GPUs, partitions and daemons to what this claim and the others need.
	holders := append(slices.Clone(t.others), t.record.Holder())
	if err := change.Set(t.ctx, t.Hardware, t.record.Plan.GPUs(), func(id gpu.UUID) gpu.DesiredState {
		return sharing.State(id, holders, t.inventory)
	}); err != nil {
		return err
	}
	if err := change.BindVFIO(t.ctx, t.Passthrough, t.record.Plan); err != nil {
		return err
	}
	if err := change.CreateVGPUs(t.ctx, t.Passthrough, t.record.Plan); err != nil {
		return err
	}
	if err := t.makePartitions(); err != nil {
		return err
	}
	holders = append(slices.Clone(t.others), t.record.Holder()) // with the partitions
	if err := t.requestDaemons(t.record.Plan.DaemonIDs(), holders); err != nil {
		return err
	}
	if err := t.awaitDaemons(); err != nil {
		return err
	}

	// Write that the claim is prepared, and then its CDI spec: while containerd reads all specs again, there is one
	// processor less. If the spec is missing, the next attempt writes it.
	prepared := t.record
	prepared.Phase, prepared.BootID = checkpoint.Prepared, t.BootID
	var devices []cdi.Device
	if prepared.Plan, devices, err = t.findAccess(); err != nil {
		return err
	}
	if !reflect.DeepEqual(prepared, t.record) {
		t.record = prepared
		if err := t.put(); err != nil {
			return err
		}
	}
	common, err := t.makeLocalIPC()
	if err != nil {
		return err
	}
	return t.step(steps.WriteClaimSpec, func() error {
		return t.Specs.WriteClaim(t.claim.UID, common, devices)
	})
}

// serves reports whether the record is for exactly these results, and is not being released.
func serves(rec checkpoint.PreparedClaim, results []allocation.Result) bool {
	return rec.Phase != checkpoint.Releasing && rec.Plan.Fulfils(results)
}

// releaseFormer releases what the claim had before it was allocated again. Error: errChanged.
func (t *tx) releaseFormer(results []allocation.Result) error {
	if err := t.release(results); err != nil && !errors.Is(err, checkpoint.ErrNotFound) {
		return fmt.Errorf("release what the claim had before: %w", err)
	}
	return errChanged
}

// decide plans a claim without a record, and records the plan if it alters anything.
func (t *tx) decide(claim *resourceapi.ResourceClaim, results []allocation.Result) error {
	var held []string
	for _, r := range results {
		if !r.AdminAccess {
			held = append(held, r.Device)
		}
	}
	if err := t.readOthers(held); err != nil {
		return err
	}
	if err := t.fit(claim); err != nil {
		return err
	}
	plan, err := sharing.NewPlan(results, t.inventory, t.others)
	if err != nil {
		return err
	}
	if plan.Limited() || plan.Isolated() {
		containers, err := t.Containers(t.ctx, claim)
		if err != nil {
			return fmt.Errorf("find the containers of the claim: %w", err)
		}
		for _, c := range containers {
			if err := plan.CheckContainer(c); err != nil {
				return err
			}
		}
		plan = plan.WithUnmounted(containers)
	}
	if plan, err = change.WithFound(t.ctx, t.Hardware, t.Passthrough, t.Daemons, plan, t.others); err != nil {
		return err
	}
	plan = plan.WithVGPUs(t.claim.UID)
	if plan.LocalIPC, err = t.LocalIPC.sizeFor(results); err != nil {
		return err
	}
	t.record = checkpoint.PreparedClaim{Phase: checkpoint.Preparing, BootID: t.BootID, Claim: t.claim, Plan: plan}
	if !sharing.Alters(plan, t.others) {
		return nil
	}
	if err := change.CheckPlacements(t.ctx, t.Hardware, plan); err != nil {
		return err
	}
	return t.put()
}

// fit returns an error if a device of the claim is unfit. One with admin access is for looking at it.
func (t *tx) fit(claim *resourceapi.ResourceClaim) error {
	if t.Unfit == nil {
		return nil
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != t.Driver || ptr.Deref(r.AdminAccess, false) {
			continue
		}
		if err := t.Unfit(r.Device, r.Tolerations); err != nil {
			return err
		}
	}
	return nil
}

// recheck checks whether the plan of a recorded claim can still be carried out.
func (t *tx) recheck() error {
	if err := t.record.Plan.CheckInPlace(t.inventory); err != nil {
		return err
	}
	if err := t.readOthers(t.record.Plan.Held()); err != nil {
		return err
	}
	if t.record.BootID == t.BootID || !t.record.Plan.ChangesHardware() {
		return nil
	}
	plan, err := change.WithFound(t.ctx, t.Hardware, t.Passthrough, t.Daemons, t.record.Plan, t.others)
	if err != nil {
		return err
	}
	t.record.Plan = plan.Unbegun() // neither partitions, vGPUs nor drivers survive a reboot
	t.record.BootID, t.record.Phase = t.BootID, checkpoint.Preparing
	return t.put()
}

// makePartitions creates the partitions of the plan, and records their UUIDs. Before they are recorded as begun, a
// partition at a placement belongs to somebody else.
func (t *tx) makePartitions() error {
	if len(t.record.Plan.Partitions()) == 0 {
		return nil
	}
	if err := change.CheckPlacements(t.ctx, t.Hardware, t.record.Plan); err != nil {
		return err
	}
	if err := t.putPlan(t.record.Plan.Begun()); err != nil {
		return err
	}
	made, err := change.CreatePartitions(t.ctx, t.Hardware, t.record.Plan)
	if err != nil {
		return err
	}
	return t.putPlan(made)
}

// findAccess finds what the CDI spec of the claim is to contain: see access.Specs.
func (t *tx) findAccess() (sharing.Plan, []cdi.Device, error) {
	specs := access.Specs{Specs: t.Specs, Toolkit: t.Toolkit, Passthrough: t.Passthrough, Host: sharing.Host{
		Daemons: t.Daemons, SharedMemory: t.SharedMemory, PreloadDir: t.PreloadDir}}
	return specs.Find(t.ctx, t.inventory, t.record.Claim.UID, t.record.Plan)
}

// awaitDaemons waits for the MPS daemons of the plan. It waits without the locks, so the claim is recorded before, and
// what is recorded afterwards counts. Errors: mps.ErrNotReady, checkpoint.ErrNotFound.
func (t *tx) awaitDaemons() error {
	daemons := t.record.Plan.DaemonIDs()
	if !slices.ContainsFunc(daemons, func(id string) bool { return t.Daemons.Check(id) != nil }) {
		return nil
	}
	if _, err := t.Records.Get(t.claim.UID); errors.Is(err, checkpoint.ErrNotFound) {
		if err := t.put(); err != nil {
			return err
		}
	}
	t.unlock()
	untilReport, cancel := context.WithDeadline(t.wait, t.tellAt)
	defer cancel()
	for _, id := range daemons {
		if err := t.step(steps.AwaitDaemon, func() error {
			err := t.Daemons.Await(untilReport, id)
			if !errors.Is(err, mps.ErrNotReady) {
				return err
			}
			t.report(err)
			return t.Daemons.Await(t.wait, id)
		}); err != nil {
			return err
		}
	}
	return t.lockHeld(t.record)
}

// How many claims Resume works on at once, and how long on each.
const (
	resumeWorkers = 8
	resumeTimeout = 30 * time.Second
)

// Resume completes or releases every recorded claim, after a crash, a reboot, an update of the driver or a manual
// change. The error joins those of all claims that failed; the others are not affected.
func (p *Preparer) Resume(ctx context.Context) error {
	records, err := p.Records.List()
	errs := make([]error, len(records))
	var all errgroup.Group
	all.SetLimit(resumeWorkers)
	for i, rec := range records {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, resumeTimeout)
			defer cancel()
			if err := p.resume(ctx, rec); err != nil && !errors.Is(err, checkpoint.ErrNotFound) {
				errs[i] = fmt.Errorf("resume claim %s: %w", rec.Claim, err)
			}
			return nil
		})
	}
	_ = all.Wait() // all errors are in errs
	return errors.Join(err, errors.Join(errs...), p.EndUnusedDaemons(ctx))
}

// resume completes or releases one claim. Error: checkpoint.ErrNotFound when it has been released meanwhile.
func (p *Preparer) resume(ctx context.Context, rec checkpoint.PreparedClaim) error {
	if rec.Phase == checkpoint.Releasing {
		return p.Unprepare(ctx, rec.Claim)
	}
	return steps.Do(ctx, steps.Prepare, func(ctx context.Context) (err error) {
		t := p.begin(ctx, rec.Claim)
		defer t.end()
		for again := true; again; again = t.again(err) {
			err = t.prepare(nil, nil)
		}
		return err
	})
}
