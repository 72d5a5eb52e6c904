// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func TestChanges(t *testing.T) {
	events := watch.NewFake()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		events.Add(&eventsv1.Event{ReportingController: driver})
		events.Add(&eventsv1.Event{ReportingController: "kubelet"})
		events.Modify(slice("a", ""))
		events.Delete(slice("a", ""))
		events.Modify(&resourceapi.ResourceClaim{})
		cancel()
	}()
	if n, err := changes(ctx, events.ResultChan(), ofDriver); n != 3 || err != nil {
		t.Errorf("got %v changes, %v, want 3", n, err)
	}
	events.Stop()
	if _, err := changes(t.Context(), events.ResultChan(), ofDriver); err == nil {
		t.Error("got no error of a watch that ended")
	}
}
