// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
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

// wait is the context in which a call waits: for devices that another claim is about to release, for GPUs that are
// still in use, and for daemons that start. It ends answerMargin before the deadline of the call, or at shutdown.
// Waiting is worth it because the kubelet calls again only after a minute or more.
type wait struct {
	context.Context
	tellAt time.Time
	tell   func(cause error) // called once at most
}

func (p *Preparer) newWait(ctx context.Context, claim sharing.Claim) (*wait, context.CancelFunc) {
	w := &wait{tellAt: time.Now().Add(tellAfter), tell: func(cause error) {
		if p.Waiting != nil {
			p.Waiting(claim, cause)
		}
	}}
	var cancel context.CancelFunc
	if deadline, ok := ctx.Deadline(); ok {
		w.Context, cancel = context.WithDeadline(ctx, deadline.Add(-answerMargin))
	} else {
		w.Context, cancel = context.WithTimeout(ctx, p.Timeout)
	}
	if p.Stopping == nil {
		return w, cancel
	}
	stop := context.AfterFunc(p.Stopping, cancel)
	return w, func() { stop(); cancel() }
}

// report calls tell with the cause if the call has waited until tellAt.
func (w *wait) report(cause error) {
	if w.tell != nil && !time.Now().Before(w.tellAt) && w.Err() == nil {
		w.tell(cause)
		w.tell = nil
	}
}

// await waits for a daemon. Error: mps.ErrNotReady.
func (w *wait) await(daemons mps.Dir, id string) error {
	untilTold, cancel := context.WithDeadline(w, w.tellAt)
	defer cancel()
	err := daemons.Await(untilTold, id)
	if !errors.Is(err, mps.ErrNotReady) {
		return err
	}
	w.report(err)
	return daemons.Await(w, id)
}

// retry calls try again while its error is transient. Between the calls it holds no lock, because the holder of the
// device needs the locks to release it.
func (p *Preparer) retry(ctx context.Context, claim sharing.Claim, try func(*wait) error) error {
	wait, cancel := p.newWait(ctx, claim)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := try(wait)
		if !transient(err) {
			return err
		}
		wait.report(err)
		select {
		case <-wait.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// transient reports whether the same call may succeed a moment later.
func transient(err error) bool {
	return errors.Is(err, gpu.ErrBusy) || errors.Is(err, ErrRunning) || errors.Is(err, sharing.ErrInUse) &&
		!errors.Is(err, sharing.ErrGone)
}
