// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// pendingChange is a mode that a GPU is to have once the claims that hold it have ended.
type pendingChange struct {
	device   string
	uuid     gpu.UUID
	from, to gpu.Use
	claims   []sharing.Claim
}

// settle gives every GPU the mode that is configured, except one that claims hold in another: it keeps that one, and its change is
// pending.
func settle(found, known inventory.Inventory, l ledger, configured func(gpu.Device) gpu.Use) (inventory.Inventory, []pendingChange) {
	settled := slices.Clone(found)
	var pending []pendingChange
	for i, d := range settled {
		before, ok := known.Find(d.Name)
		if d.Lost && ok {
			settled[i].Use = before.Use // what it could be is not known now
			continue
		}
		want := configured(d)
		want.Partitions = inventory.Partitioning(d, want.Partitions, before.Use.Partitions, l.own)
		if how, has := l.partitioned(d.Name); has { // the record knows better than what is known of the GPU
			if !ok {
				before.Use, ok = want, true
			}
			before.Use.Partitions = how
		}
		if holders := l.holders(d.Name); ok && before.Use != want && len(holders) > 0 {
			pending = append(pending, pendingChange{d.Name, d.UUID, before.Use, want, holders})
			want = before.Use
		}
		settled[i].Use = want
	}
	return settled, pending
}

// recorded gives every GPU the mode that it had, and leaves out those that had none. The error reports them.
func recorded(found, known inventory.Inventory) (inventory.Inventory, error) {
	var settled inventory.Inventory
	var errs []error
	for _, d := range found {
		before, ok := known.Find(d.Name)
		if !ok {
			errs = append(errs, fmt.Errorf("%s (%s)", d.Name, d.UUID))
			continue
		}
		d.Use = before.Use
		settled = append(settled, d)
	}
	return settled, errors.Join(errs...)
}

// announce tells which changes are pending, each new one in an event.
func (m *machine) announce(ctx context.Context, pending []pendingChange) {
	before := m.pending
	m.pending = pending
	m.metrics.pendingChanges.set(pending)
	for _, p := range pending {
		if slices.ContainsFunc(before, func(q pendingChange) bool { return p.device == q.device && p.from == q.from && p.to == q.to }) {
			continue
		}
		var names []string
		for _, c := range p.claims {
			names = append(names, c.String())
		}
		klog.FromContext(ctx).Info("Change of mode waits for claims", "device", p.device, "uuid", p.uuid, "from", p.from.String(), "to", p.to.String(), "claims", names)
		m.reporter.device(Events.ModeChangePending, p.device, "%s", note(fmt.Sprintf("GPU %s (%s) will change from %s to %s when these claims have ended: %s",
			p.device, p.uuid, p.from, p.to, strings.Join(names, ", "))))
	}
}
