// SPDX-License-Identifier: Apache-2.0

// Package claims prepares GPUs for claims and takes them back. It is the only package that knows the order of things:
//
//	Prepare:   decide → write the record (Preparing) → change the hardware → wait for daemons →
//	           write the CDI spec → write the record (Prepared) → answer
//	Unprepare: write the record (Releasing) → remove the CDI spec → change the hardware back → delete the record
//
// A plan that changes no hardware skips what is about hardware, and the records Preparing and Releasing with it. Every step may be repeated, so whatever interrupts one of them is
// put right by calling it again.
package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// Node is what is known of the machine.
type Node struct {
	Inventory inventory.Inventory
	Hardware  Hardware
}

// Hardware is what a Preparer needs of the machine. Every method may be repeated with the same arguments.
type Hardware interface {
	// DriverAccess is what every container with a GPU needs.
	DriverAccess() (gpu.Access, error)
	// Access is what a container needs of this GPU, beside DriverAccess.
	Access(d gpu.Device) (gpu.Access, error)
	// Configure sets how the GPU is shared in time, where claims may have left it with the settings before. The zero Settings are
	// those of the factory; a GPU that is gone has them already.
	Configure(ctx context.Context, id gpu.UUID, s, before gpu.Settings) error
	// Vacant says whether a partition could be made there, as far as partitions of others go. Error: gpu.ErrForeign.
	Vacant(at gpu.Placement) error
	// Divide puts the GPU into the mode for partitions. Errors: gpu.ErrBusy, gpu.ErrFixed.
	Divide(ctx context.Context, id gpu.UUID) error
	// Create makes the partition on a GPU in that mode. Where was is empty, one that is there already is the one; otherwise it must be
	// that one. Errors: gpu.ErrForeign, gpu.ErrRemoved.
	Create(ctx context.Context, at gpu.Placement, was gpu.UUID) (gpu.UUID, error)
	// Destroy removes the partition if it is as it was, and after the last one of the GPU takes it out of the mode for them, where that
	// can be done without a reset and nobody uses it. It is no error if there is none or another one, nor if the GPU is gone.
	// Error: gpu.ErrBusy.
	Destroy(ctx context.Context, at gpu.Placement, was gpu.UUID) error
	// Merge makes the GPU usable as a whole, where partitions were before. Errors: gpu.ErrBusy, gpu.ErrForeign, gpu.ErrFixed.
	Merge(ctx context.Context, id gpu.UUID) error
	// MemoryLimit is what a container needs, beside Access, for the driver to limit its memory of this GPU. The error says why the
	// machine cannot.
	MemoryLimit(d gpu.Device) (gpu.Access, error)
}

// Daemons keeps MPS daemons running. They outlive this process.
type Daemons interface {
	Want(d mps.Daemon) error
	Unwant(id string) error
	Wanted() ([]mps.Daemon, error)
	Await(ctx context.Context, id string, atMost time.Duration) error
	Pipe(id string) string
}

// Specs keeps what container runtimes are told.
type Specs interface {
	WriteDriver(common gpu.Access) (name string, err error)
	WriteClaim(claim types.UID, devices []cdi.Device) (names []string, err error)
	RemoveClaim(claim types.UID) error
	Complete(claim types.UID) (bool, error)
}

// Records keeps what has been decided.
type Records interface {
	Get(claim types.UID) (checkpoint.Record, error)
	Put(rec checkpoint.Record) error
	Delete(rec checkpoint.Record) error
	List() ([]checkpoint.Record, error)
	// Lock keeps others from the devices; Holders finds the claims on them meanwhile.
	Lock(ctx context.Context, devices []string) (unlock func(), err error)
	Holders(devices []string, except types.UID) ([]sharing.Holder, error)
}

// Preparer prepares claims for one driver on one node. It keeps nothing in memory between calls: several may work on the same
// records, in one process or in many.
type Preparer struct {
	Driver  string
	BootID  string               // changes when the machine starts: what was prepared before must be made anew
	Node    func() (Node, error) // asked at every call that needs it; the error says what the driver waits for
	Specs   Specs
	Records Records
	Daemons Daemons
	// Containers are those that will use the claim, as far as they are known. Asked only about claims with limits of several kinds.
	Containers func(ctx context.Context, claim *resourceapi.ResourceClaim) ([]Container, error)
	Paths      Paths
	// Patience is how long Prepare waits for a device that another claim still holds. The claim that had it before may be on its
	// way out: when a pod is deleted with grace period 0, its claim is given to the next one while its container still runs.
	Patience time.Duration
	// DaemonPatience is how long Prepare waits for MPS daemons before it says so; the kubelet calls again. So long does Unprepare wait
	// for one that still uses a partition, too.
	DaemonPatience time.Duration
}

// Container is a container of a pod that uses a claim.
type Container struct {
	Name     string
	Requests []string // of the claim; none means all
}

// holderPollPeriod is how often Prepare looks whether a device has become free.
const holderPollPeriod = 50 * time.Millisecond

// Prepare makes the devices of an allocated claim usable for containers, and returns the record that says so. Repeating it gives the
// same answer; a claim that was allocated anew since is released first. Errors: allocation.ErrNotAllocated, those of sharing.NewPlan,
// checkpoint.ErrUnreadable, mps.ErrNotReady, gpu.ErrBusy, gpu.ErrForeign, gpu.ErrFixed,
// gpu.ErrRemoved, and whatever stopped it; then nothing is promised to the kubelet and it can be called
// again.
func (p *Preparer) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (checkpoint.Record, error) {
	results, err := allocation.Results(claim, p.Driver)
	if err != nil || len(results) == 0 {
		return checkpoint.Record{}, err
	}
	rec, err := p.Records.Get(claim.UID)
	switch {
	case errors.Is(err, checkpoint.ErrNotFound):
		return p.prepare(ctx, claim, results)
	case err != nil:
		return checkpoint.Record{}, err
	case rec.Phase != checkpoint.Releasing && rec.Plan.Fulfils(results):
		return p.restore(ctx, rec)
	}
	if err := p.Unprepare(ctx, claim.UID); err != nil {
		return checkpoint.Record{}, fmt.Errorf("release what the claim had before: %w", err)
	}
	return p.prepare(ctx, claim, results)
}

// Resume puts every claim right that a crash, a reboot or somebody's hand has left incomplete. The error reports each claim that
// it could not help; the others are done all the same.
func (p *Preparer) Resume(ctx context.Context) error {
	records, err := p.Records.List()
	errs := []error{err}
	releasing := func(rec checkpoint.Record) bool { return rec.Phase == checkpoint.Releasing }
	first, then := partition(records, releasing) // others may wait for what is being released
	for _, rec := range append(first, then...) {
		switch {
		case releasing(rec):
			err = p.Unprepare(ctx, rec.Claim.UID)
		case rec.Plan.ChangesHardware(): // which may have been reset in this run of the machine, too
			if err = p.changeAgain(ctx, rec.Claim); err == nil {
				rec, err = p.Records.Get(rec.Claim.UID) // what was made anew is another one
			}
			if err == nil {
				_, err = p.restore(ctx, rec)
			}
		default:
			_, err = p.restore(ctx, rec)
		}
		if err != nil && !errors.Is(err, checkpoint.ErrNotFound) { // released since the records were listed
			errs = append(errs, fmt.Errorf("resume claim %s: %w", rec.Claim, err))
		}
	}
	errs = append(errs, p.endUnusedDaemons(ctx))
	return errors.Join(errs...)
}

// partition are the records of which that is true, and the others, in their order.
func partition(records []checkpoint.Record, is func(checkpoint.Record) bool) (those, others []checkpoint.Record) {
	for _, rec := range records {
		if is(rec) {
			those = append(those, rec)
		} else {
			others = append(others, rec)
		}
	}
	return those, others
}

// prepare decides what the claim gets, and waits for devices that another claim is about to give back.
func (p *Preparer) prepare(ctx context.Context, claim *resourceapi.ResourceClaim, results []allocation.Result) (checkpoint.Record, error) {
	deadline := time.Now().Add(p.Patience)
	for {
		rec, err := p.tryPrepare(ctx, claim, results)
		switch {
		case err == nil && rec.Phase == checkpoint.Preparing:
			return p.complete(ctx, rec)
		case !errors.Is(err, sharing.ErrInUse) || errors.Is(err, sharing.ErrGone) || time.Now().After(deadline):
			return rec, err
		}
		select { // no lock is held here: the holder needs it to let go
		case <-ctx.Done():
			return checkpoint.Record{}, err
		case <-time.After(holderPollPeriod):
		}
	}
}

// tryPrepare decides while nobody else can decide about the same devices. A plan that changes hardware comes back in the phase
// Preparing: what is left to do takes time, and others need not wait for it.
func (p *Preparer) tryPrepare(ctx context.Context, claim *resourceapi.ResourceClaim, results []allocation.Result) (checkpoint.Record, error) {
	var names []string
	for _, r := range results {
		names = append(names, r.Device)
	}
	unlock, err := p.Records.Lock(ctx, names)
	if err != nil {
		return checkpoint.Record{}, err
	}
	defer unlock()
	node, err := p.Node() // asked again in every attempt: how GPUs may be used can change while this one waits
	if err != nil {
		return checkpoint.Record{}, err
	}
	others, err := p.holders(results, claim.UID)
	if err != nil {
		return checkpoint.Record{}, err
	}
	plan, err := sharing.NewPlan(results, node.Inventory, others)
	if err != nil {
		return checkpoint.Record{}, err
	}
	if err := p.checkContainers(ctx, claim, plan); err != nil {
		return checkpoint.Record{}, err
	}
	rec := checkpoint.Record{Phase: checkpoint.Preparing, BootID: p.BootID, Plan: plan,
		Claim: sharing.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}}
	if !plan.ChangesHardware() {
		if err := node.merge(ctx, plan); err != nil {
			return checkpoint.Record{}, err
		}
		return p.finish(ctx, node, rec)
	}
	if err := node.vacant(plan); err != nil {
		return checkpoint.Record{}, err
	}
	if err := p.put(ctx, rec); err != nil {
		return checkpoint.Record{}, err
	}
	return rec, p.change(ctx, node, rec, others)
}

// checkContainers refuses a plan that some container could not use as a whole.
func (p *Preparer) checkContainers(ctx context.Context, claim *resourceapi.ResourceClaim, plan sharing.Plan) error {
	if !plan.Limited() {
		return nil
	}
	containers, err := p.Containers(ctx, claim)
	if err != nil {
		return fmt.Errorf("find the containers of the claim: %w", err)
	}
	for _, c := range containers {
		if err := plan.CheckContainer(c.Name, c.Requests); err != nil {
			return err
		}
	}
	return nil
}

// holders are the claims on devices that the results are to hold: admin access needs nobody's consent, nor that of a record that
// nobody can read.
func (p *Preparer) holders(results []allocation.Result, except types.UID) ([]sharing.Holder, error) {
	var devices []string
	for _, r := range results {
		if !r.AdminAccess {
			devices = append(devices, r.Device)
		}
	}
	if len(devices) == 0 {
		return nil, nil
	}
	return p.Records.Holders(devices, except)
}

// restore answers for a claim that has a plan. What the machine has forgotten since, or what was never finished, is made after the
// recorded plan; so is what a monitor gets, because other GPUs may be there by now, and a partition is looked for, because somebody may
// have removed it. Error: checkpoint.ErrNotFound when the claim has been released meanwhile.
func (p *Preparer) restore(ctx context.Context, rec checkpoint.Record) (checkpoint.Record, error) {
	complete, err := p.Specs.Complete(rec.Claim.UID)
	if err != nil {
		return checkpoint.Record{}, err
	}
	partition := func(a sharing.Assignment) bool { return a.Partition != nil }
	mayHaveChanged := rec.Plan.Monitors() || slices.ContainsFunc(rec.Plan.Assignments, partition)
	if complete && rec.Phase == checkpoint.Prepared && rec.BootID == p.BootID && !mayHaveChanged {
		return rec, nil
	}
	if rec.Plan.ChangesHardware() {
		if err := p.changeAgain(ctx, rec.Claim); err != nil {
			return checkpoint.Record{}, err
		}
	}
	return p.complete(ctx, rec)
}

// held is locked for a claim that must not be on its way out. Error: checkpoint.ErrNotFound.
func (p *Preparer) held(ctx context.Context, claim sharing.Claim) (rec checkpoint.Record, unlock func(), err error) {
	rec, unlock, err = p.locked(ctx, claim.UID)
	if err == nil && rec.Phase == checkpoint.Releasing {
		unlock()
		return checkpoint.Record{}, nil, fmt.Errorf("claim %s is being released: %w", claim, checkpoint.ErrNotFound)
	}
	return rec, unlock, err
}

// locked takes the locks of all that the claim touches and returns its record as it is then: while this call waited, another one
// may have released the claim, or prepared it anew. Error: checkpoint.ErrNotFound.
func (p *Preparer) locked(ctx context.Context, claim types.UID) (rec checkpoint.Record, unlock func(), err error) {
	for {
		before, err := p.Records.Get(claim)
		if err != nil {
			return checkpoint.Record{}, nil, err
		}
		devices := before.Plan.Devices()
		unlock, err := p.Records.Lock(ctx, devices)
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

// complete waits for what the hardware needs and finishes the claim as it is recorded then. No lock is held while it waits.
func (p *Preparer) complete(ctx context.Context, rec checkpoint.Record) (checkpoint.Record, error) {
	deadline := time.Now().Add(p.DaemonPatience)
	for _, id := range rec.Plan.DaemonIDs() {
		if err := p.Daemons.Await(ctx, id, time.Until(deadline)); err != nil {
			return checkpoint.Record{}, err
		}
	}
	node, err := p.Node()
	if err != nil {
		return checkpoint.Record{}, err
	}
	rec, unlock, err := p.held(ctx, rec.Claim)
	if err != nil {
		return checkpoint.Record{}, err
	}
	defer unlock()
	return p.finish(ctx, node, rec)
}

// finish makes the CDI specs agree with the plan and writes down that they do.
func (p *Preparer) finish(ctx context.Context, node Node, rec checkpoint.Record) (checkpoint.Record, error) {
	devices, err := p.render(node, rec)
	if err != nil {
		return checkpoint.Record{}, err
	}
	common, err := node.Hardware.DriverAccess()
	if err != nil {
		return checkpoint.Record{}, err
	}
	driver, err := p.Specs.WriteDriver(common)
	if err != nil {
		return checkpoint.Record{}, err
	}
	names, err := p.Specs.WriteClaim(rec.Claim.UID, devices)
	if err != nil {
		return checkpoint.Record{}, err
	}
	rec.Phase, rec.BootID, rec.Grants = checkpoint.Prepared, p.BootID, nil
	for i, a := range rec.Plan.Assignments {
		rec.Grants = append(rec.Grants, checkpoint.Grant{
			Request: a.Request, Pool: a.Pool, Device: a.Device, ShareID: a.ShareID, CDI: []string{driver, names[i]}})
	}
	if err := p.put(ctx, rec); err != nil {
		return checkpoint.Record{}, err
	}
	return rec, nil
}

// put writes the record down, unless the kubelet has given up the call: its Unprepare may have come and gone.
func (p *Preparer) put(ctx context.Context, rec checkpoint.Record) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := p.Records.Put(rec); err != nil {
		return fmt.Errorf("record the claim: %w", err)
	}
	return nil
}

// Unprepare takes back what the claim has. It is no error if it has nothing.
func (p *Preparer) Unprepare(ctx context.Context, claim types.UID) error {
	rec, unlock, err := p.locked(ctx, claim)
	if errors.Is(err, checkpoint.ErrNotFound) {
		return p.Specs.RemoveClaim(claim) // Prepare may have been cut off between spec and record
	}
	if err != nil {
		return err
	}
	defer unlock()
	// Where no hardware has to be changed back, a release that is cut off leaves a claim that is merely prepared or gone.
	if rec.Phase != checkpoint.Releasing && rec.Plan.ChangesHardware() {
		rec.Phase = checkpoint.Releasing
		if err := p.Records.Put(rec); err != nil {
			return fmt.Errorf("record the release: %w", err)
		}
	}
	if err := p.Specs.RemoveClaim(claim); err != nil {
		return err
	}
	if rec.Plan.ChangesHardware() {
		if err := p.changeBack(ctx, rec); err != nil {
			return err
		}
	}
	return p.Records.Delete(rec)
}
