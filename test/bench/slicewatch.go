// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// sliceWatch is a watch of the driver's slices, and what it has shown so far.
type sliceWatch struct {
	events watch.Interface
	slices map[string]*resourceapi.ResourceSlice
	at     time.Time // when the last event came
}

func (b *bench) watchSlices(ctx context.Context) (*sliceWatch, error) {
	list, events, err := b.newSlices(ctx)
	if err != nil {
		return nil, err
	}
	w := &sliceWatch{events: events, slices: map[string]*resourceapi.ResourceSlice{}, at: time.Now()}
	for i := range list.Items {
		w.slices[list.Items[i].Name] = &list.Items[i]
	}
	return w, nil
}

func (b *bench) newSlices(ctx context.Context) (*resourceapi.ResourceSliceList, watch.Interface, error) {
	published := b.client.ResourceV1().ResourceSlices()
	return watchNew(ctx, published.List, published.Watch, metav1.ListOptions{FieldSelector: "spec.driver=" + driver})
}

// watchNew lists objects, and watches what happens after that.
func watchNew[L metav1.ListInterface](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error), o metav1.ListOptions) (L,
	watch.Interface, error) {
	found, err := list(ctx, o)
	if err != nil {
		return found, nil, err
	}
	o.ResourceVersion = found.GetResourceVersion()
	events, err := follow(ctx, o)
	return found, events, err
}

// until waits until is returns true, and returns the time of the event that made it so.
func (w *sliceWatch) until(ctx context.Context, what string, is func(*sliceWatch) bool) (time.Time, error) {
	for !is(w) {
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case event := <-w.events.ResultChan():
			if err := w.take(event); err != nil {
				return time.Time{}, fmt.Errorf("wait for %s: %w", what, err)
			}
		}
	}
	return w.at, nil
}

// drain takes the events that have come since the last wait.
func (w *sliceWatch) drain() error {
	for {
		select {
		case event := <-w.events.ResultChan():
			if err := w.take(event); err != nil {
				return err
			}
		case <-time.After(50 * time.Millisecond): // the watch has a channel without a buffer
			return nil
		}
	}
}

// take applies an event; the zero event means that the watch has ended.
func (w *sliceWatch) take(event watch.Event) error {
	w.at = time.Now()
	if event.Object == nil {
		return errors.New("the watch ended")
	}
	slice, ok := event.Object.(*resourceapi.ResourceSlice)
	if !ok {
		return apierrors.FromObject(event.Object)
	}
	if event.Type == watch.Deleted {
		delete(w.slices, slice.Name)
	} else {
		w.slices[slice.Name] = slice
	}
	return nil
}

// count returns the number of devices that match.
func (w *sliceWatch) count(matches func(resourceapi.Device) bool) int {
	n := 0
	for _, slice := range w.slices {
		for _, d := range slice.Spec.Devices {
			if matches(d) {
				n++
			}
		}
	}
	return n
}

// tainted reports whether the device has the taint of an XID.
func (w *sliceWatch) tainted(device string) bool {
	return w.count(func(d resourceapi.Device) bool {
		return d.Name == device && hasTaint(d, inventory.TaintXID)
	}) > 0
}

// sick reports whether the device has a taint of its health.
func sick(d resourceapi.Device) bool {
	return hasTaint(d, inventory.TaintXID) || hasTaint(d, inventory.TaintUnhealthy)
}

func hasTaint(d resourceapi.Device, key string) bool {
	return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == key })
}
