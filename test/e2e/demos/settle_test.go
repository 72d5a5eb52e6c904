// SPDX-License-Identifier: Apache-2.0

package demos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// phase is a pod of a test: its name, where it is, and its log.
type phase struct {
	name, node string
	phase      corev1.PodPhase
	log        string
}

// shows returns the sight of pods.
func shows(pods ...phase) sight {
	s := sight{lines: []string{"asked:  pods"}, state: fmt.Sprint(pods)}
	for _, p := range pods {
		pod := corev1.Pod{Spec: corev1.PodSpec{NodeName: p.node}, Status: corev1.PodStatus{Phase: p.phase}}
		pod.Name = p.name
		s.pods = append(s.pods, pod)
		if p.node == "" {
			s.lines = append(s.lines, "landed: pod "+p.name+" nowhere, it is "+string(p.phase))
		}
		s.lines = append(s.lines, indent("saw:    ", p.log)...)
	}
	return s
}

// step is the time in which one thing moves, as on a machine that has other things to do. The clock is not the
// machine's: see testing/synctest.
const step = 5 * time.Second

// worker is the pod of replicas with this number: it starts after the one before and prints its log later.
func worker(i int, since time.Duration) phase {
	p := phase{name: fmt.Sprint("worker-", i), node: "node-1", phase: corev1.PodPending}
	started := time.Duration(i) * step
	if since > started {
		p.phase = corev1.PodRunning
	}
	if since > started+step {
		p.log = p.name + "\n"
	}
	return p
}

// No verdict depends on the speed of the machine.
func TestSettle(t *testing.T) {
	const patience = 2 * step
	ten := []string{"asked:  pods"}
	for i := range 10 {
		ten = append(ten, fmt.Sprint("saw:    worker-", i))
	}
	workers := func(most int) func(time.Duration) (sight, error) {
		return func(since time.Duration) (sight, error) {
			var pods []phase
			for i := range min(most, 1+int(since/step)) {
				pods = append(pods, worker(i, since))
			}
			return shows(pods...), nil
		}
	}
	always := func(pods ...phase) func(time.Duration) (sight, error) {
		return func(time.Duration) (sight, error) { return shows(pods...), nil }
	}
	for _, tc := range []struct {
		name     string
		expected []string
		look     func(time.Duration) (sight, error)
		kind     error
		why      string
	}{
		{"ten slow pods", ten, workers(10), nil, ""},
		{"a pod that is never made", ten, workers(9), kube.ErrStuck, `waited 10s for "saw:    worker-9"`},
		{"a pod that does not start", []string{"asked:  pods", "saw:    ok"},
			always(phase{"a", "node-1", corev1.PodPending, ""}), kube.ErrStuck, "pod a is Pending for 10s"},
		{"a pod without a node", []string{"asked:  pods", "saw:    ok"}, always(phase{"a", "", corev1.PodPending, ""}),
			kube.ErrStuck, "pod a is Pending for 10s"},
		{"a log that is not complete", []string{"asked:  pods", "saw:    ok"},
			always(phase{"a", "node-1", corev1.PodRunning, ""}), kube.ErrStuck, `waited 10s for "saw:    ok"`},
		{"a running pod that saw something else", []string{"asked:  pods", "saw:    ok"},
			always(phase{"a", "node-1", corev1.PodRunning, "no"}), ErrDifferent, `"saw:    no" instead of "saw:    ok"`},
		{"a running pod that saw too much", []string{"asked:  pods"},
			always(phase{"a", "node-1", corev1.PodRunning, "no"}), ErrDifferent, `"saw:    no" is too much`},
		{"a finished pod that saw less", []string{"asked:  pods", "saw:    ok"},
			always(phase{"a", "node-1", corev1.PodSucceeded, ""}), ErrDifferent, `"saw:    ok" is missing`},
		{"one saw something else, one has not started", []string{"asked:  pods", "saw:    ok", "saw:    ok"},
			always(phase{"a", "node-1", corev1.PodRunning, "no"}, phase{"b", "node-1", corev1.PodPending, ""}),
			kube.ErrStuck, "pod b is Pending for 10s"},
		{"a pod that the README wants to wait",
			[]string{"asked:  pods", "landed: pod a nowhere, it is Pending", "saw:    full"},
			always(phase{"a", "", corev1.PodPending, "busy"}), ErrDifferent, `"saw:    busy" instead of "saw:    full"`},
		{"a cluster that does not answer", ten,
			func(time.Duration) (sight, error) { return sight{}, errors.New("connection refused") }, kube.ErrStuck,
			"connection refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				_, err := Demo{Name: "x", Expected: tc.expected}.settle(t.Context(), patience,
					func(context.Context) (sight, error) { return tc.look(time.Since(start)) })
				if tc.kind == nil {
					if err != nil {
						t.Error(err)
					}
					return
				}
				var failure Failure
				if !errors.As(err, &failure) || !errors.Is(err, tc.kind) || !strings.Contains(failure.Why, tc.why) {
					t.Errorf("got %v, want %v: %s", err, tc.kind, tc.why)
				}
			})
		})
	}
}
