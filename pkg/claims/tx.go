// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims/change"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// answerMargin is how long before its deadline a call stops waiting, so that it answers in time.
const answerMargin = 4 * time.Second

// tellAfter is how long a call waits before it calls Preparer.Waiting.
const tellAfter = 5 * time.Second

// Pauses between the attempts of a waiting call: the first, and the longest.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
)

// tx is one call of Prepare or Unprepare: what its steps pass to each other. A call makes attempts until one succeeds,
// or fails for good: see again. Each attempt sets the fields of the second group.
type tx struct {
	*Preparer
	ctx    context.Context
	claim  sharing.Claim
	wait   context.Context // ends when the call stops waiting: see begin
	end    func()          // releases what the call has used for waiting
	pause  time.Duration   // before the next attempt
	tellAt time.Time       // when Waiting is called
	told   bool            // it was

	locks     func()                   // releases the locks of GPUs; nil: none is held
	record    checkpoint.PreparedClaim // of the claim: as it is on disk, or is to be written next
	inventory inventory.Inventory      // the devices that the node has
	others    []sharing.Holder         // the other claims on the GPUs
}

// begin starts a call. It waits until answerMargin before the deadline of ctx, or for Timeout if there is none, and at
// most until Stopping. The caller calls end.
func (p *Preparer) begin(ctx context.Context, claim sharing.Claim) *tx {
	t := &tx{Preparer: p, ctx: ctx, claim: claim, pause: firstPause, tellAt: time.Now().Add(tellAfter)}
	until := time.Now().Add(p.Timeout)
	if deadline, ok := ctx.Deadline(); ok {
		until = deadline.Add(-answerMargin)
	}
	wait, cancel := context.WithDeadline(ctx, until)
	t.wait, t.end = wait, cancel
	if p.Stopping != nil {
		stop := context.AfterFunc(p.Stopping, cancel)
		t.end = func() { stop(); cancel() }
	}
	return t
}

// again reports whether the call makes another attempt after err, and waits before that. Meanwhile it holds no lock,
// because the holder of the device needs the locks to release it.
func (t *tx) again(err error) bool {
	switch {
	case errors.Is(err, errChanged):
		return true
	case errors.Is(err, gpu.ErrBusy), errors.Is(err, ErrRunning):
	case !errors.Is(err, sharing.ErrInUse), errors.Is(err, sharing.ErrGone):
		return false
	}
	t.report(err)
	select {
	case <-t.wait.Done():
		return false
	case <-time.After(t.pause):
	}
	t.pause = min(2*t.pause, longestPause)
	return true
}

// report calls Waiting with the cause, once, if the call has waited until tellAt.
func (t *tx) report(cause error) {
	if t.Waiting != nil && !t.told && !time.Now().Before(t.tellAt) && t.wait.Err() == nil {
		t.told = true
		t.Waiting(t.claim, cause)
	}
}

// step runs one step that needs no context.
func (t *tx) step(name string, do func() error) error {
	return steps.Do(t.ctx, name, func(context.Context) error { return do() })
}

// put writes the record. Once the context has ended, only a release is recorded: the kubelet may already have
// unprepared a claim that is being prepared, but nobody prepares one that is being released.
func (t *tx) put() error {
	what := "release"
	if t.record.Phase != checkpoint.Releasing {
		what = "claim"
		if err := t.ctx.Err(); err != nil {
			return err
		}
	}
	if err := t.step(steps.WriteRecord, func() error { return t.Records.Put(t.record) }); err != nil {
		return fmt.Errorf("record the %s: %w", what, err)
	}
	return nil
}

// putPlan records the plan if it has changed. The CDI specs of a prepared claim must be written again then.
func (t *tx) putPlan(plan sharing.Plan) error {
	if reflect.DeepEqual(plan, t.record.Plan) {
		return nil
	}
	t.record.Plan = plan
	if t.record.Phase == checkpoint.Prepared {
		t.record.Phase = checkpoint.Preparing
	}
	return t.put()
}

// readOthers reads the other claims on the GPUs of the devices that a claim holds, without what they had of GPUs that
// have moved on the PCI bus. Devices with admin access are not among them, so unreadable records about those do not
// matter. The GPUs are locked. Error: checkpoint.ErrUnreadable.
func (t *tx) readOthers(held []string) error {
	t.others = nil
	if len(held) == 0 {
		return nil
	}
	return t.step(steps.FindHolders, func() error {
		found, err := t.Records.Holders(held, t.claim.UID)
		t.others = sharing.InPlace(found, t.inventory)
		return err
	})
}

// requestDaemons requests those of the MPS daemons that the holders use, and ends the others.
func (t *tx) requestDaemons(ids []string, holders []sharing.Holder) error {
	return change.RequestDaemons(t.ctx, t.Daemons, t.DaemonMemory, ids, holders)
}
