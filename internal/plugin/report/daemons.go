// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/dirwatch"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// daemonResyncPeriod is how often the states of the MPS daemons are read without a change of their files.
const daemonResyncPeriod = time.Minute

// DaemonWatch reports to claims what happens to their MPS daemons.
type DaemonWatch struct {
	Daemons  mps.Dir
	Records  Lister
	Reporter daemonReporter

	seen   map[string]mps.DaemonState // the last look, by daemon
	single sets.Set[types.UID]        // claims that SingleUser was called for
}

// daemonReporter reports to claims: see Reporter.
type daemonReporter interface {
	// DaemonRestarted is called for each claim of a daemon that was restarted.
	DaemonRestarted(claim sharing.Claim, daemon string)
	// ServerFailed is called for each claim of a daemon of which a server has ended with an error.
	ServerFailed(claim sharing.Claim, daemon, what string)
	// SingleUser is called once for each claim whose daemon cannot serve several users at the same time.
	SingleUser(claim sharing.Claim, daemon string)
}

// Run watches until ctx ends.
func (w *DaemonWatch) Run(ctx context.Context) {
	changes := dirwatch.New(ctx, w.Daemons.Concerns)
	for {
		// Each directory before its contents are read, so that nothing is missed.
		changes.Keep(filepath.Dir(string(w.Daemons)), string(w.Daemons))
		changes.Keep(w.Daemons.DaemonDirs()...)
		if err := w.look(); err != nil {
			klog.FromContext(ctx).V(2).Info("MPS daemons cannot be looked at", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-changes.Changed():
		case <-time.After(daemonResyncPeriod):
		}
	}
}

// look reports what has changed since the last call. The previous instance reported what was before the first one.
func (w *DaemonWatch) look() error {
	wanted, err := w.Daemons.Requested()
	if err != nil {
		return err
	}
	before, reported := w.seen, w.single
	w.seen, w.single = map[string]mps.DaemonState{}, sets.New[types.UID]()
	var unread error
	for _, d := range wanted {
		now, err := w.Daemons.State(d.ID)
		if err != nil {
			return err
		}
		w.seen[d.ID] = now
		was := before[d.ID]
		restarted := before != nil && now.Restarts > was.Restarts // a new daemon has not been restarted
		failed := before != nil && now.ServerFailures > 0 &&
			(now.PID != was.PID || now.ServerFailures > was.ServerFailures)
		if !restarted && !failed && !now.SingleUser {
			continue
		}
		records, err := w.Records.List()
		unread = cmp.Or(unread, err) // the claims of the others are told
		for _, rec := range records {
			if !slices.Contains(rec.Plan.DaemonIDs(), d.ID) {
				continue
			}
			if restarted {
				w.Reporter.DaemonRestarted(rec.Claim, d.ID)
			}
			if failed {
				w.Reporter.ServerFailed(rec.Claim, d.ID, now.ServerFailure)
			}
			if now.SingleUser {
				w.single.Insert(rec.Claim.UID)
				if !reported.Has(rec.Claim.UID) {
					w.Reporter.SingleUser(rec.Claim, d.ID)
				}
			}
		}
	}
	return unread
}
