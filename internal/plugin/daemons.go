// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// daemonWatchPeriod is how often the MPS daemons are looked at.
const daemonWatchPeriod = 2 * time.Second

// daemonWatch tells the owners of claims when the MPS daemon under their containers was started again: clients of the one before
// have failed with it.
type daemonWatch struct {
	daemons   Daemons
	records   claims.Records
	restarted func(claim sharing.Claim, daemon string)

	seen map[string]int // restarts, by daemon
}

func (w *daemonWatch) run(ctx context.Context) {
	for {
		if err := w.look(); err != nil {
			klog.FromContext(ctx).V(2).Info("MPS daemons cannot be looked at", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(daemonWatchPeriod):
		}
	}
}

// look compares with the last look. What has happened before the first one was told by the instance before.
func (w *daemonWatch) look() error {
	wanted, err := w.daemons.Wanted()
	if err != nil {
		return err
	}
	before := w.seen
	w.seen = map[string]int{}
	for _, d := range wanted {
		state, err := w.daemons.State(d.ID)
		if err != nil {
			return err
		}
		w.seen[d.ID] = state.Restarts
		if before == nil || state.Restarts <= before[d.ID] { // a daemon that is new was not restarted before
			continue
		}
		records, err := w.records.List()
		if err != nil {
			return err
		}
		for _, rec := range records {
			if slices.Contains(rec.Plan.DaemonIDs(), d.ID) {
				w.restarted(rec.Claim, d.ID)
			}
		}
	}
	return nil
}
