// SPDX-License-Identifier: Apache-2.0

// Package claims prepares GPUs for claims and releases them. Only this package knows the order of the steps:
//
//	Prepare:   decide → write the record (Preparing) → change the hardware → wait for daemons →
//	           write the CDI spec → write the record (Prepared) → answer
//	Unprepare: write the record (Releasing) → remove the CDI spec → change the hardware back → delete the record
//
// If nothing changes with the claim, because another claim on the GPU needs the same, and no daemon has to be waited
// for, the record is written once, and the release begins without one: see sharing.Alters. Every step may be repeated,
// so a second call of Prepare or Unprepare completes an interrupted one. Each step runs through steps.Do, so that
// observers can follow it.
package claims

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// Hardware changes GPUs. Every method may be repeated with the same arguments. A change is a method of its own if the
// record must be on disk before the next change.
type Hardware interface {
	// Set changes the settings and the MIG mode of a physical GPU. It is no error if the GPU is gone and s only
	// restores defaults. Errors: gpu.ErrBusy, gpu.ErrForeignPartition, gpu.ErrMIGModeFixed.
	Set(ctx context.Context, id gpu.UUID, s gpu.State) error
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

// Toolkit knows what a container needs in order to use GPUs.
type Toolkit interface {
	// DriverAccess returns what every container with a GPU needs.
	DriverAccess(ctx context.Context) (gpu.Access, error)
	// Access returns what a container needs for this device, besides DriverAccess.
	Access(ctx context.Context, d gpu.Device) (gpu.Access, error)
	// MemoryLimit returns what a container needs, besides Access, so that NVIDIA's driver limits its memory on this
	// GPU. The error says why the machine cannot.
	MemoryLimit(d gpu.Device) (gpu.Access, error)
}

// Preparer prepares claims for one driver on one node. It keeps no state in memory between calls. Several Preparers may
// use the same records, in one process or in many.
type Preparer struct {
	Driver string
	BootID string // changes when the machine boots; claims prepared before must be prepared again
	// Devices returns the devices that the node has now. The error says what the driver waits for.
	Devices  func() (inventory.Inventory, error)
	Hardware Hardware
	Toolkit  Toolkit
	Specs    *cdi.Specs
	Records  *checkpoint.Records
	Daemons  mps.Dir
	// Containers returns the known containers that use the claim. It is called only when the devices have limits.
	Containers func(ctx context.Context, claim *resourceapi.ResourceClaim) ([]sharing.Container, error)
	// Running returns the names of running containers with the claim. The claim is not released before they have ended.
	Running func(claim sharing.Claim) ([]string, error)
	// SharedMemory is the /dev/shm that MPS daemons without one of their own share with their clients; empty: none.
	SharedMemory string
	// DaemonMemory is the size of the /dev/shm of an MPS daemon and its clients, in bytes; 0: they use SharedMemory.
	DaemonMemory uint64
	// PreloadDir is the directory of the files that make the dynamic loader load a hook library.
	PreloadDir string
	// Timeout limits how long a call without a deadline waits: see wait.
	Timeout time.Duration
	// Waiting is called at most once per call, after 5 s of waiting, with the cause; may be nil.
	Waiting func(claim sharing.Claim, cause error)
	// Stopping ends all waiting when it is cancelled, at shutdown; nil: never.
	Stopping context.Context
}

// Prepare makes the devices of an allocated claim usable for containers, and returns its record. It may be repeated. A
// claim that has been allocated again since is released first. After an error it can be called again. Errors:
// allocation.ErrNotAllocated, *allocation.ConfigError, *sharing.Refusal, checkpoint.ErrUnreadable, mps.ErrNotReady and
// those of Hardware.
func (p *Preparer) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (rec checkpoint.Record, err error) {
	err = steps.Do(ctx, steps.Prepare, func(ctx context.Context) error {
		results, err := allocation.Results(claim, p.Driver)
		if err != nil || len(results) == 0 {
			return err
		}
		return p.retry(ctx, claimOf(claim), func(wait *wait) error {
			rec, err = p.tryPrepare(ctx, wait, claim, results)
			return err
		})
	})
	return rec, err
}

// claimOf returns the name of the claim in records.
func claimOf(c *resourceapi.ResourceClaim) sharing.Claim {
	return sharing.Claim{Namespace: c.Namespace, Name: c.Name, UID: c.UID}
}

func (p *Preparer) tryPrepare(
	ctx context.Context, wait *wait, claim *resourceapi.ResourceClaim, results []allocation.Result,
) (checkpoint.Record, error) {
	rec, err := p.Records.Get(claim.UID)
	switch {
	case errors.Is(err, checkpoint.ErrNotFound):
		return p.decide(ctx, wait, claim, results)
	case err != nil:
		return checkpoint.Record{}, err
	case serves(rec, results):
		return p.ensure(ctx, wait, rec.Claim)
	}
	// Another call may prepare it for the new results meanwhile: then it stays.
	keep := func(rec checkpoint.Record) bool { return serves(rec, results) }
	if err := p.releaseUnless(ctx, claim.UID, keep); err != nil && !errors.Is(err, checkpoint.ErrNotFound) {
		return checkpoint.Record{}, fmt.Errorf("release what the claim had before: %w", err)
	}
	return p.tryPrepare(ctx, wait, claim, results)
}

// serves reports whether the record is for exactly these results, and is not being released.
func serves(rec checkpoint.Record, results []allocation.Result) bool {
	return rec.Phase != checkpoint.Releasing && rec.Plan.Fulfils(results)
}

// ErrRunning means that a container still runs with the claim. The message names it.
var ErrRunning = errors.New("the claim is released when it has ended")

// ErrNotRestored means that settings and MPS daemons of the claim's GPUs stay as they are, because a claim with an
// unreadable record may need them, or because the GPUs cannot be set since a reboot. Nothing else is left of the claim
// but its record, in phase Releasing. Unprepare can be called again when that has ended.
var ErrNotRestored = errors.New("the settings of its GPUs are not restored")

// Unprepare releases the devices of the claim. It is no error if it has none. Errors: ErrRunning, ErrNotRestored,
// checkpoint.ErrUnreadable and those of Hardware.
func (p *Preparer) Unprepare(ctx context.Context, claim sharing.Claim) error {
	return steps.Do(ctx, steps.Unprepare, func(ctx context.Context) error {
		return p.retry(ctx, claim, func(wait *wait) error {
			return p.release(ctx, wait, claim.UID)
		})
	})
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
	errs := []error{err}
	var mu sync.Mutex
	var all sync.WaitGroup
	places := make(chan struct{}, resumeWorkers)
	for _, rec := range records {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			ctx, cancel := context.WithTimeout(ctx, resumeTimeout)
			defer cancel()
			if err := p.resume(ctx, rec); err != nil && !errors.Is(err, checkpoint.ErrNotFound) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("resume claim %s: %w", rec.Claim, err))
			}
		})
	}
	all.Wait()
	errs = append(errs, p.EndUnusedDaemons(ctx))
	return errors.Join(errs...)
}

// resume completes or releases one claim. Error: checkpoint.ErrNotFound when it has been released meanwhile.
func (p *Preparer) resume(ctx context.Context, rec checkpoint.Record) error {
	if rec.Phase == checkpoint.Releasing {
		return p.Unprepare(ctx, rec.Claim)
	}
	return steps.Do(ctx, steps.Prepare, func(ctx context.Context) error {
		return p.retry(ctx, rec.Claim, func(wait *wait) error {
			_, err := p.ensure(ctx, wait, rec.Claim)
			return err
		})
	})
}
