// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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
