// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// change makes GPUs and daemons agree with the plan and with those of the others on the same GPUs. The caller holds their locks.
func (p *Preparer) change(ctx context.Context, node Node, rec checkpoint.Record, others []sharing.Holder) error {
	all := append(slices.Clone(others), sharing.Holder{Claim: rec.Claim, Plan: rec.Plan})
	// Whoever had the GPUs before has left them as they came from the factory, or is among the others and wants the same.
	if err := node.configure(ctx, sharing.Settings(rec.Plan.Changed(), all), nil); err != nil {
		return err
	}
	for _, d := range sharing.Daemons(rec.Plan.DaemonIDs(), all) {
		if err := p.Daemons.Want(d); err != nil {
			return fmt.Errorf("ask for MPS daemon %s: %w", d.ID, err)
		}
	}
	return nil
}

// changeAgain is change for a claim that is recorded. Error: checkpoint.ErrNotFound.
func (p *Preparer) changeAgain(ctx context.Context, claim sharing.Claim) error {
	node, err := p.Node()
	if err != nil {
		return err
	}
	rec, unlock, err := p.held(ctx, claim)
	if err != nil {
		return err
	}
	defer unlock()
	others, err := p.Records.Holders(rec.Plan.Devices(), rec.Claim.UID)
	if err != nil {
		return err
	}
	if rec.BootID != p.BootID { // from now on there is something to undo again
		rec.BootID, rec.Phase = p.BootID, checkpoint.Preparing
		if err := p.put(ctx, rec); err != nil {
			return err
		}
	}
	return p.change(ctx, node, rec, others)
}

// changeBack makes GPUs and daemons agree with what the others want of them, which may be nothing. The caller holds their locks.
func (p *Preparer) changeBack(ctx context.Context, rec checkpoint.Record) error {
	others, err := p.Records.Holders(rec.Plan.Devices(), rec.Claim.UID)
	if err != nil {
		return err
	}
	ids := rec.Plan.DaemonIDs()
	for _, d := range sharing.Daemons(ids, others) {
		ids = slices.DeleteFunc(ids, func(id string) bool { return id == d.ID })
		if err := p.Daemons.Want(d); err != nil {
			return fmt.Errorf("ask for MPS daemon %s: %w", d.ID, err)
		}
	}
	for _, id := range ids {
		if err := p.Daemons.Unwant(id); err != nil {
			return fmt.Errorf("end MPS daemon %s: %w", id, err)
		}
	}
	if rec.BootID != p.BootID {
		return nil // the machine has forgotten the settings since, and may not even have its driver now
	}
	node, err := p.Node()
	if err != nil {
		return err
	}
	had := sharing.Settings(rec.Plan.Changed(), []sharing.Holder{{Plan: rec.Plan}})
	wanted := sharing.Settings(rec.Plan.Changed(), others)
	maps.DeleteFunc(wanted, func(id gpu.UUID, s gpu.Settings) bool { return s == had[id] })
	return node.configure(ctx, wanted, had)
}

// configure sets all GPUs at once: each may take its time.
func (n Node) configure(ctx context.Context, settings, before map[gpu.UUID]gpu.Settings) error {
	ids := slices.Sorted(maps.Keys(settings))
	errs := make([]error, len(ids))
	var all sync.WaitGroup
	for i, id := range ids {
		one := func() {
			if err := n.Hardware.Configure(ctx, id, settings[id], before[id]); err != nil {
				errs[i] = fmt.Errorf("GPU %s: %s: %w", id, settings[id], err)
			}
		}
		if len(ids) == 1 {
			one()
			break
		}
		all.Go(one)
	}
	all.Wait()
	return errors.Join(errs...)
}

// endUnusedDaemons ends MPS daemons that no record speaks of, which a crash may have left.
func (p *Preparer) endUnusedDaemons(ctx context.Context) error {
	wanted, err := p.Daemons.Wanted()
	errs := []error{err}
	for _, d := range wanted {
		errs = append(errs, p.endIfUnused(ctx, d.ID))
	}
	return errors.Join(errs...)
}

// endIfUnused ends the daemon unless a claim on its first device uses it, whose name is the ID of the daemon.
func (p *Preparer) endIfUnused(ctx context.Context, id string) error {
	unlock, err := p.Records.Lock(ctx, []string{id})
	if err != nil {
		return err
	}
	defer unlock()
	holders, err := p.Records.Holders([]string{id}, "")
	if err != nil || len(sharing.Daemons([]string{id}, holders)) > 0 {
		return err
	}
	return p.Daemons.Unwant(id)
}
