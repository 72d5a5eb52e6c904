// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

const (
	stormRate  = 1000 // XIDs a second
	stormTime  = time.Minute
	stormBatch = 50 * time.Millisecond // the time between two batches of a storm
	// stormEnd is how long writes are counted after a storm.
	stormEnd = 5 * time.Second
)

// storm lets a GPU with a prepared claim report the same XID for a minute, and counts what the plugin writes.
func (s *sickness) storm(ctx context.Context) error {
	claims, err := s.allocated(ctx, s.gpu(0))
	if err != nil {
		return err
	}
	err = s.withPrepared(ctx, claims, func() error {
		if err := errors.Join(s.settled(ctx, claims...), s.quiet(ctx)); err != nil {
			return err
		}
		before, err := s.process.memory()
		if err != nil {
			return err
		}
		xids, err := s.metric(ctx, "gpu_dra_gpu_xids_total{")
		if err != nil {
			return err
		}
		written, err := s.written(ctx, func() error {
			return errors.Join(s.emitMany(ctx, s.gpus[0]), sleep(ctx, stormEnd))
		})
		if err != nil {
			return err
		}
		after, err := s.process.memory()
		if err != nil {
			return err
		}
		now, err := s.metric(ctx, "gpu_dra_gpu_xids_total{")
		s.results["storm"] = []float64{written[0] + written[1] + written[2]}
		s.results["stormkinds"] = written[:]
		s.results["stormxids"] = []float64{now - xids}
		s.results["stormrss"] = []float64{before.rss, after.rss}
		return err
	})
	return errors.Join(err, s.deleteClaims(ctx))
}

// emitMany lets the GPU report XIDs at the rate of a storm.
func (s *sickness) emitMany(ctx context.Context, device string) error {
	event, err := s.machine.NewEvent(device, node.EventXID, manualXID)
	if err != nil {
		return err
	}
	begin := time.Now()
	for done, all := 0, int(stormRate*stormTime.Seconds()); done < all; {
		if err := sleep(ctx, stormBatch); err != nil {
			return err
		}
		due := min(all, int(stormRate*time.Since(begin).Seconds()))
		if err := s.machine.Emit(slices.Repeat([]node.Event{event}, due-done)...); err != nil {
			return err
		}
		done = due
	}
	return nil
}

// written counts what is written while do runs: slices of the driver, events of the driver, and claims of the bench. A
// write that changes nothing is in no watch.
func (b *bench) written(ctx context.Context, do func() error) (counts [3]float64, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	_, found, err := b.newSlices(ctx)
	if err != nil {
		return counts, err
	}
	events := b.client.EventsV1().Events(metav1.NamespaceAll)
	_, reported, err := watchNew(ctx, events.List, events.Watch, metav1.ListOptions{})
	if err != nil {
		return counts, err
	}
	_, claims, err := watchNew(ctx, b.claims.List, b.claims.Watch, metav1.ListOptions{})
	if err != nil {
		return counts, err
	}
	kinds := [3]watch.Interface{found, reported, claims}
	var errs [3]error
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		_ = atOnce(len(kinds), len(kinds), func(i int) error {
			counts[i], errs[i] = changes(ctx, kinds[i].ResultChan(), ofDriver)
			return nil
		})
	}()
	err = do()
	stop()
	<-counted
	return counts, errors.Join(err, errors.Join(errs[:]...))
}

// changes counts the objects that were created or changed, of those for which ours returns true, until ctx ends.
func changes(ctx context.Context, events <-chan watch.Event, ours func(runtime.Object) bool) (n float64, err error) {
	for {
		select {
		case <-ctx.Done():
			return n, nil
		case event, open := <-events:
			switch {
			case !open && ctx.Err() != nil:
				return n, nil //nolint:nilerr // the watch ends with the context
			case !open:
				return n, errors.New("count writes: the watch ended")
			case event.Type == watch.Error:
				return n, fmt.Errorf("count writes: %w", apierrors.FromObject(event.Object))
			case event.Type != watch.Deleted && ours(event.Object):
				n++
			}
		}
	}
}

// ofDriver reports whether the object is not an event, or an event of the driver.
func ofDriver(o runtime.Object) bool {
	event, ok := o.(*eventsv1.Event)
	return !ok || event.ReportingController == driver
}
