// SPDX-License-Identifier: Apache-2.0

// Package claims prepares GPUs for claims and takes them back. It is the only package that knows the order of things:
//
//	Prepare:   decide → write the CDI spec → write the record (Prepared) → answer
//	Unprepare: write the record (Releasing) → remove the CDI spec → delete the record
//
// Every step may be repeated, so whatever interrupts one of them is put right by calling it again.
package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	// Patience is how long Prepare waits for a device that another claim still holds. The claim that had it before may be on its
	// way out: when a pod is deleted with grace period 0, its claim is given to the next one while its container still runs.
	Patience time.Duration
}

// holderPollPeriod is how often Prepare looks whether a device has become free.
const holderPollPeriod = 50 * time.Millisecond

// Prepare makes the devices of an allocated claim usable for containers. Repeating it gives the same answer; a claim that was
// allocated anew since is released first. Errors: allocation.ErrNotAllocated, sharing.ErrInUse, sharing.ErrGone,
// checkpoint.ErrUnreadable, and whatever stopped it; then nothing is promised to the kubelet and it can be called again.
func (p *Preparer) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]checkpoint.Grant, error) {
	results, err := allocation.Results(claim, p.Driver)
	if err != nil || len(results) == 0 {
		return nil, err
	}
	rec, err := p.Records.Get(claim.UID)
	switch {
	case errors.Is(err, checkpoint.ErrNotFound):
		return p.prepare(ctx, claim, results)
	case err != nil:
		return nil, err
	case rec.Phase == checkpoint.Prepared && rec.Plan.Fulfils(results):
		return p.restore(ctx, rec)
	}
	if err := p.Unprepare(ctx, claim.UID); err != nil {
		return nil, fmt.Errorf("release what the claim had before: %w", err)
	}
	return p.prepare(ctx, claim, results)
}

// Resume puts every claim right that a crash, a reboot or somebody's hand has left incomplete. The error reports each claim that
// it could not help; the others are done all the same.
func (p *Preparer) Resume(ctx context.Context) error {
	records, err := p.Records.List()
	errs := []error{err}
	for _, rec := range records {
		if rec.Phase == checkpoint.Releasing {
			err = p.Unprepare(ctx, rec.Claim.UID)
		} else {
			_, err = p.restore(ctx, rec)
		}
		if err != nil && !errors.Is(err, checkpoint.ErrNotFound) { // released since the records were listed
			errs = append(errs, fmt.Errorf("resume claim %s: %w", rec.Claim, err))
		}
	}
	return errors.Join(errs...)
}

// prepare decides what the claim gets, and waits for devices that another claim is about to give back.
func (p *Preparer) prepare(ctx context.Context, claim *resourceapi.ResourceClaim, results []allocation.Result) ([]checkpoint.Grant, error) {
	node, err := p.Node()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, r := range results {
		names = append(names, r.Device)
	}
	deadline := time.Now().Add(p.Patience)
	for {
		grants, err := p.tryPrepare(ctx, node, claim, results, names)
		if !errors.Is(err, sharing.ErrInUse) || errors.Is(err, sharing.ErrGone) || time.Now().After(deadline) {
			return grants, err
		}
		select { // no lock is held here: the holder needs it to let go
		case <-ctx.Done():
			return nil, err
		case <-time.After(holderPollPeriod):
		}
	}
}

// tryPrepare decides while nobody else can decide about the same devices.
func (p *Preparer) tryPrepare(ctx context.Context, node Node, claim *resourceapi.ResourceClaim, results []allocation.Result, names []string) ([]checkpoint.Grant, error) {
	unlock, err := p.Records.Lock(ctx, names)
	if err != nil {
		return nil, err
	}
	defer unlock()
	others, err := p.holders(results, claim.UID)
	if err != nil {
		return nil, err
	}
	plan, err := sharing.NewPlan(results, node.Inventory, others)
	if err != nil {
		return nil, err
	}
	return p.apply(ctx, node, sharing.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}, plan)
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

// restore answers for a prepared claim. What the machine has forgotten since is made again, after the recorded plan; so is what a
// monitor gets, because other GPUs may be there by now. Error: checkpoint.ErrNotFound when the claim has been released meanwhile.
func (p *Preparer) restore(ctx context.Context, rec checkpoint.Record) ([]checkpoint.Grant, error) {
	complete, err := p.Specs.Complete(rec.Claim.UID)
	if err != nil {
		return nil, err
	}
	if complete && rec.BootID == p.BootID && !rec.Plan.Monitors() {
		return rec.Grants, nil
	}
	node, err := p.Node()
	if err != nil {
		return nil, err
	}
	rec, unlock, err := p.locked(ctx, rec.Claim.UID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if rec.Phase == checkpoint.Releasing {
		return nil, fmt.Errorf("claim %s is being released: %w", rec.Claim, checkpoint.ErrNotFound)
	}
	return p.apply(ctx, node, rec.Claim, rec.Plan)
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

// apply makes the CDI specs agree with the plan and writes down that they do. A call that the kubelet has given up writes nothing
// down: its Unprepare may have come and gone.
func (p *Preparer) apply(ctx context.Context, node Node, claim sharing.Claim, plan sharing.Plan) ([]checkpoint.Grant, error) {
	devices, err := node.render(claim.UID, plan)
	if err != nil {
		return nil, err
	}
	common, err := node.Hardware.DriverAccess()
	if err != nil {
		return nil, err
	}
	driver, err := p.Specs.WriteDriver(common)
	if err != nil {
		return nil, err
	}
	names, err := p.Specs.WriteClaim(claim.UID, devices)
	if err != nil {
		return nil, err
	}
	rec := checkpoint.Record{Claim: claim, Phase: checkpoint.Prepared, BootID: p.BootID, Plan: plan}
	for i, a := range plan.Assignments {
		rec.Grants = append(rec.Grants, checkpoint.Grant{
			Request: a.Request, Pool: a.Pool, Device: a.Device, ShareID: a.ShareID, CDI: []string{driver, names[i]}})
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.Records.Put(rec); err != nil {
		return nil, fmt.Errorf("record the claim: %w", err)
	}
	return rec.Grants, nil
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
	if rec.Phase != checkpoint.Releasing {
		rec.Phase = checkpoint.Releasing
		if err := p.Records.Put(rec); err != nil {
			return fmt.Errorf("record the release: %w", err)
		}
	}
	if err := p.Specs.RemoveClaim(claim); err != nil {
		return err
	}
	return p.Records.Delete(rec)
}

// render asks what the containers need: one CDI device for each assignment.
func (n Node) render(claim types.UID, plan sharing.Plan) ([]cdi.Device, error) {
	var devices []cdi.Device
	for _, a := range plan.Assignments {
		access, err := n.access(a)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(a.Environment)) {
			access.Env = append(access.Env, name+"="+a.Environment[name])
		}
		devices = append(devices, cdi.Device{Name: cdiName(claim, a), Access: access})
	}
	return devices, nil
}

// access is what the containers need of the assigned GPU, or of every GPU for a monitor.
func (n Node) access(a sharing.Assignment) (gpu.Access, error) {
	if !a.Monitors() {
		device, ok := n.Inventory.Find(a.Device)
		if !ok || device.Lost || device.UUID != a.GPU {
			return gpu.Access{}, fmt.Errorf("device %s (%s): %w", a.Device, a.GPU, sharing.ErrGone)
		}
		return n.Hardware.Access(device)
	}
	present := n.Inventory.Present()
	if len(present) == 0 {
		return gpu.Access{}, fmt.Errorf("device %s: %w", a.Device, sharing.ErrGone)
	}
	var all gpu.Access
	for _, device := range present {
		access, err := n.Hardware.Access(device)
		if err != nil {
			return gpu.Access{}, err
		}
		all.Append(access)
	}
	return all, nil
}

// cdiName is unique for ever, because runtimes remember names.
func cdiName(claim types.UID, a sharing.Assignment) string {
	name := string(claim) + "-" + a.Device
	if a.ShareID != "" {
		name += "-" + string(a.ShareID)
	}
	return name
}
