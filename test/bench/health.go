// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

const (
	// manualXID stays until a person clears the GPU. evictingXID has the effect NoExecute in demo/values.yaml.
	manualXID   = 142
	evictingXID = 79

	taintRounds = 5 // on each GPU
)

// sickness makes simulated GPUs sick and watches the slices for what follows.
type sickness struct {
	*bench
	machine *node.Node
	slices  *sliceWatch
}

// measureHealth times taints and evictions after an XID, and counts what a storm of XIDs writes.
func measureHealth(ctx context.Context, b *bench) (failure error) {
	machine, err := node.Attach(b.process.path(filepath.Dir(driverRoot)))
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	published, err := b.watchSlices(watching)
	if err != nil {
		return err
	}
	s := &sickness{b, machine, published}
	defer func() { failure = errors.Join(failure, s.heal(context.WithoutCancel(ctx))) }()
	for _, measure := range []func(context.Context) error{s.taints, s.evictions, s.storm} {
		if err := errors.Join(b.quiet(ctx), measure(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// emit lets the GPU report an XID, and returns the time just before.
func (s *sickness) emit(device string, xid uint64) (time.Time, error) {
	event, err := s.machine.NewEvent(device, node.EventXID, xid)
	if err != nil {
		return time.Time{}, err
	}
	begin := time.Now()
	return begin, s.machine.Emit(event)
}

// change changes what NVML reports to be wrong with a GPU, written as for "simctl health".
func (s *sickness) change(device, setting string) error {
	change, err := node.ParseHealth([]string{setting})
	if err != nil {
		return err
	}
	return s.machine.ChangeHealth(device, change)
}

// heal makes all GPUs healthy and waits until none has a taint of its health, and no request to clear one is left.
func (s *sickness) heal(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	for _, device := range s.gpus {
		if err := s.change(device, "recovery-action=none"); err != nil {
			return err
		}
	}
	for {
		for _, device := range s.gpus {
			if err := health.RequestClear(s.process.path(pluginDir), device); err != nil {
				return err
			}
		}
		// A discovery that has begun before may still find what was wrong. Then it is cleared again.
		attempt, end := context.WithTimeout(ctx, 3*time.Second)
		_, err := s.slices.until(attempt, "healthy GPUs", func(w *sliceWatch) bool { return w.count(sick) == 0 })
		late := attempt.Err() != nil
		end()
		if err == nil {
			break
		}
		if ctx.Err() != nil || !late {
			return err
		}
	}
	return until(ctx, "the plugin to clear all GPUs", func() (bool, error) {
		return !slices.ContainsFunc(s.gpus, func(device string) bool {
			return health.ClearRequested(s.process.path(pluginDir), device)
		}), nil
	})
}

// taints times taints of GPUs that no claim holds, each GPU in turn.
func (s *sickness) taints(ctx context.Context) error {
	var first, all samples
	for range taintRounds {
		for _, device := range s.gpus {
			// Not in step with the plugin's clock, which ticks every second.
			if err := sleep(ctx, 300*time.Millisecond+rand.N(time.Second)); err != nil {
				return err
			}
			one, every, err := s.taint(ctx, device)
			if err != nil {
				return err
			}
			first, all = append(first, one), append(all, every)
		}
		if err := s.heal(ctx); err != nil {
			return err
		}
	}
	s.results["taint"] = []float64{first.p50(), first.at(0.99)}
	s.results["taintparts"] = []float64{all.p50(), all.at(0.99)}
	return nil
}

// taint returns the times from an XID until the watch shows the taint on the GPU, and on it and all of its partitions.
func (s *sickness) taint(ctx context.Context, device string) (first, all time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	if err := s.slices.drain(); err != nil {
		return 0, 0, err
	}
	begin, err := s.emit(device, manualXID)
	if err != nil {
		return 0, 0, err
	}
	one, err := s.slices.until(ctx, "the taint of "+device, func(w *sliceWatch) bool { return w.tainted(device) })
	if err != nil {
		return 0, 0, err
	}
	every, err := s.slices.until(ctx, "the taints of the partitions of "+device, func(w *sliceWatch) bool {
		return w.count(func(d resourceapi.Device) bool {
			return gpu.ParentName(d.Name) == device && !hasTaint(d, inventory.TaintXID)
		}) == 0
	})
	return one.Sub(begin), every.Sub(begin), err
}
