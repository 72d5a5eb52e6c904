// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func TestReplaced(t *testing.T) {
	pod := func(name, node string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{Phase: phase}}
	}
	terminating := pod("old", "node", corev1.PodRunning)
	terminating.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	for _, row := range []struct {
		name  string
		first watch.Event
	}{
		{"deleted at once", watch.Event{Type: watch.Deleted, Object: pod("old", "node", corev1.PodRunning)}},
		{"terminating", watch.Event{Type: watch.Modified, Object: terminating}},
	} {
		t.Run(row.name, func(t *testing.T) {
			events := make(chan watch.Event)
			go func() {
				for _, e := range []watch.Event{
					{Type: watch.Modified, Object: pod("old", "node", corev1.PodRunning)}, // its health
					row.first,
					{Type: watch.Added, Object: pod("new", "", corev1.PodPending)},
					{Type: watch.Modified, Object: pod("new", "node", corev1.PodPending)},
					{Type: watch.Modified, Object: pod("new", "node", corev1.PodRunning)},
				} {
					events <- e
					time.Sleep(time.Millisecond)
				}
			}()
			r, err := replaced(t.Context(), events, "old")
			if err != nil || r.next == nil || r.next.Name != "new" || !r.deleted.Before(r.bound) ||
				!r.bound.Before(r.running) {
				t.Errorf("got %+v, %v", r, err)
			}
		})
	}
	ended := make(chan watch.Event)
	close(ended)
	if _, err := replaced(t.Context(), ended, "old"); err == nil {
		t.Error("got no error of a watch that ended")
	}
}

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

func TestSum(t *testing.T) {
	const text = `# HELP gpu_dra_gpu_xids_total XIDs
gpu_dra_gpu_xids_total{uuid="GPU-a",xid="142"} 6e+04
gpu_dra_gpu_xids_total{uuid="GPU-a",xid="79"} 7
gpu_dra_operation_duration_seconds_sum{operation="prepare"} 0.125
gpu_dra_operation_duration_seconds_sum{operation="unprepare"} 3
`
	for _, row := range []struct {
		prefix string
		want   float64
	}{
		{"gpu_dra_gpu_xids_total{", 60007},
		{`gpu_dra_operation_duration_seconds_sum{operation="prepare"}`, 0.125},
		{"gpu_dra_nothing", 0},
	} {
		if got, err := sum(text, row.prefix); got != row.want || err != nil {
			t.Errorf("%s: got %v, %v, want %v", row.prefix, got, err, row.want)
		}
	}
	if _, err := sum("a much\n", "a"); err == nil {
		t.Error("got no error of a value that is no number")
	}
}

// Runs the rows of the idle watching for a moment. It does not check their times.
func TestWatchingCost(t *testing.T) {
	machine, look, err := partitionedMachine(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(len(look.GPUs), len(look.Devices)); got != "8 64" {
		t.Errorf("got %s GPUs and devices, want 8 64", got)
	}
	for _, library := range []nvmllib.Interface{nil, waitingLibrary{machine.NVML()}, machine.NVML()} {
		if _, err := watchingTime(t.Context(), machine, library, look, 100*time.Millisecond); err != nil {
			t.Error(err)
		}
	}
}
