// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// slice returns a slice of devices, which have the taint of an XID if tainted names them.
func slice(name string, tainted string, devices ...string) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, device := range devices {
		d := resourceapi.Device{Name: device}
		if device == tainted {
			d.Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "142"}}
		}
		s.Spec.Devices = append(s.Spec.Devices, d)
	}
	return s
}

func TestSliceWatch(t *testing.T) {
	events := watch.NewFake()
	first := slice("a", "", "gpu-0", "gpu-1")
	w := &sliceWatch{events: events, slices: map[string]*resourceapi.ResourceSlice{"a": first}}
	go func() {
		events.Add(slice("b", "gpu-1-mig-1g10gb-0", "gpu-1-mig-1g10gb-0"))
		events.Modify(slice("a", "gpu-1", "gpu-0", "gpu-1"))
		events.Delete(slice("b", "", "gpu-1-mig-1g10gb-0"))
	}()
	before := time.Now()
	at, err := w.until(t.Context(), "a taint", func(w *sliceWatch) bool { return w.tainted("gpu-1") })
	if err != nil || at.Before(before) || w.tainted("gpu-0") || w.count(sick) != 2 {
		t.Errorf("got %s, %v, and %d sick devices, want 2", at, err, w.count(sick))
	}
	if again, err := w.until(t.Context(), "it", func(w *sliceWatch) bool { return w.tainted("gpu-1") }); err != nil ||
		again != at {
		t.Errorf("what is so already: got %s, %v, want the time of its event, %s", again, err, at)
	}
	if err := w.drain(); err != nil || len(w.slices) != 1 {
		t.Errorf("after a slice was deleted: got %d slices, %v, want 1", len(w.slices), err)
	}
	events.Stop()
	if _, err := w.until(t.Context(), "it", func(*sliceWatch) bool { return false }); err == nil {
		t.Error("got no error of a watch that ended")
	}
}
