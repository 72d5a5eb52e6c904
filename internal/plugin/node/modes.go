// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// assignModes assigns the configured mode to every GPU. A GPU that claims hold keeps its mode, and the change is
// pending.
func assignModes(found, known inventory.Inventory, r records, configured func(gpu.Device) gpu.SharingMode) (
	inventory.Inventory, []report.PendingChange) {
	assigned := slices.Clone(found)
	var pending []report.PendingChange
	for i, d := range assigned {
		before, ok := known.Find(d.Name)
		if d.Lost && ok {
			assigned[i].Use = before.Use // a lost GPU does not tell what it supports
			continue
		}
		want := inventory.Mode(d, configured(d), before.Use.Partitions, r.own)
		if how, has := r.partitioned(d.Name); has { // the record is more reliable than the known mode
			if !ok {
				before.Use, ok = want, true
			}
			before.Use.Partitions = how
		}
		if before.Use.Partitions == want.Partitions {
			before.Use.OnDemand = want.OnDemand // it does not concern claims
		}
		if r.inVM(d.Name) { // otherwise its device would not be published
			if !ok {
				before.Use, ok = want, true
			}
			before.Use.NoPassthrough, before.Use.SharedOnly = false, false
		}
		if holders := r.claimsOn(d.Name); ok && before.Use != want && len(holders) > 0 {
			pending = append(pending, report.PendingChange{Device: d.Name, UUID: d.UUID, From: before.Use, To: want,
				Claims: holders})
			want = before.Use
		}
		assigned[i].Use = want
	}
	return assigned, pending
}

// withKnownModes assigns the known mode to every GPU, and leaves out GPUs without one. The error names those.
func withKnownModes(found, known inventory.Inventory) (inventory.Inventory, error) {
	var assigned inventory.Inventory
	var errs []error
	for _, d := range found {
		before, ok := known.FindUUID(d.UUID)
		if !ok && d.Lost { // the UUID may be unknown
			before, ok = known.Find(d.Name)
		}
		if !ok {
			errs = append(errs, fmt.Errorf("%s (%s)", d.Name, d.UUID))
			continue
		}
		d.Use = before.Use
		assigned = append(assigned, d)
	}
	return assigned, errors.Join(errs...)
}

// reportPending reports the pending changes, each new one in an event.
func (s *state) reportPending(ctx context.Context, pending []report.PendingChange, a *actions) {
	before := s.pending
	s.pending, a.Metrics.pending = pending, &pending
	for _, p := range pending {
		if slices.ContainsFunc(before, func(q report.PendingChange) bool {
			return p.Device == q.Device && p.From == q.From && p.To == q.To
		}) {
			continue
		}
		var names []string
		for _, c := range p.Claims {
			names = append(names, c.String())
		}
		klog.FromContext(ctx).Info("Change of mode waits for claims", "device", p.Device, "uuid", p.UUID,
			"from", p.From.String(), "to", p.To.String(), "claims", names)
		a.notice(report.Events.ModeChangePending, fmt.Sprintf("GPU %s (%s) will change from %s to %s when "+
			"these claims have ended: %s",
			p.Device, p.UUID, p.From, p.To, strings.Join(names, ", ")))
	}
}
