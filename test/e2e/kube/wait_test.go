// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The clock of these tests is not the machine's: see testing/synctest.
func TestUntil(t *testing.T) {
	const patience = time.Minute
	refused := errors.New("connection refused")
	for _, tc := range []struct {
		name string
		look func(since time.Duration) (bool, string, error)
		want string        // in the error; empty: none
		took time.Duration // at least, and at most a minute more
	}{
		{"what moves slowly takes its time", func(since time.Duration) (bool, string, error) {
			return since > 30*time.Minute, fmt.Sprint(int(since / (50 * time.Second))), nil
		}, "", 30 * time.Minute},
		{"what stands still ends the wait", func(time.Duration) (bool, string, error) { return false, "Pending", nil },
			"wait for it: nothing new for 1m0s; last seen: Pending", patience},
		{"what goes in circles stands still", func(since time.Duration) (bool, string, error) {
			return false, fmt.Sprint("step ", int(since/(10*time.Second))%3), nil
		}, "nothing new for 1m0s", patience + 20*time.Second},
		{"an error is nothing new", func(since time.Duration) (bool, string, error) {
			return false, "", fmt.Errorf("at %s: %w", since, refused)
		}, "connection refused", patience},
		{"an error does not end the wait", func(since time.Duration) (bool, string, error) {
			if since < 50*time.Second {
				return false, "", refused
			}
			return true, "", nil
		}, "", 50 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				err := Until(t.Context(), patience, "it", func(context.Context) (bool, string, error) {
					return tc.look(time.Since(start))
				})
				if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				if err != nil && !errors.Is(err, ErrStuck) {
					t.Errorf("%v is not ErrStuck", err)
				}
				if took := time.Since(start); took < tc.took || took > tc.took+time.Minute {
					t.Errorf("took %s, want %s", took, tc.took)
				}
			})
		})
	}
}

func TestUntilEndsALookThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := Until(t.Context(), time.Minute, "it", func(ctx context.Context) (bool, string, error) {
			<-ctx.Done()
			return false, "", ctx.Err()
		})
		if !errors.Is(err, ErrStuck) {
			t.Errorf("got %v, want %v", err, ErrStuck)
		}
	})
}

func TestUntilEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := Until(ctx, time.Minute, "it", func(context.Context) (bool, string, error) { return false, "", nil })
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrStuck) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

func TestPodState(t *testing.T) {
	pod := func(restarts int32, state corev1.ContainerState) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", RestartCount: restarts, State: state}}}}
	}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	if PodState(pod(1, waits)) == PodState(pod(1, runs)) {
		t.Error("a container that starts to run is not seen")
	}
	if first, again := PodState(pod(1, runs)), PodState(pod(2, runs)); first != again {
		t.Errorf("a container that is started again is new: %q, %q", first, again)
	}
}
