//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// runningWithin is how long a pod may take that gets the GPU of one that was deleted by force: less than it takes until the kubelet
	// tries again what has failed. Where nothing else runs it is 3 s.
	runningWithin = 9 * time.Second
	// forcedGrace is what the kubelet gives a container of such a pod to end, whatever the pod says.
	forcedGrace = 2 * time.Second
)

// holdLock is a program that has a file locked as long as it lives, ignores SIGTERM, and says when somebody has the lock already.
const holdLock = `trap "" TERM
exec 9>/var/lib/handover.lock
flock --nonblock 9 && echo alone || echo together
while :; do sleep 0.1; done`

// testHandover deletes a pod by force: its claim is gone from the API, and the GPU given to the next pod, while its container
// still runs.
func (n node) testHandover(t *testing.T) {
	for _, row := range []struct {
		name    string
		options []podOption
		says    string
		within  time.Duration
	}{
		{"a program that ends when it is told", nil, "GPU 0", runningWithin},
		{"a program that ignores SIGTERM, in a pod that has time", []podOption{shell(holdLock), grace(20 * time.Second)}, "alone", runningWithin + forcedGrace},
	} {
		t.Run(row.name, func(t *testing.T) {
			ns := n.namespace(t, "handover")
			first := n.pod(t, ns, "first", "", row.options...)
			n.running(t, first)
			device := n.device(t, first)
			n.waitLog(t, first, row.says)
			n.force(t, first)
			begin := time.Now()
			next := n.pod(t, ns, "next", exactly(n.uuid(t, device)), row.options...)
			pod := n.running(t, next)
			seen := time.Since(begin)
			if got := n.device(t, next); got != device {
				t.Fatalf("got %s, want %s", got, device)
			}
			n.waitLog(t, next, row.says)
			took := runningSince(pod).Sub(pod.CreationTimestamp.Time)
			t.Logf("from created to running: %s by the API's clock, %s as seen here", took, seen.Round(10*time.Millisecond))
			if took > row.within {
				t.Errorf("from created to running: got %s, want at most %s\n%s", took, row.within, n.Diagnose(t.Context(), ns))
			}
			n.force(t, next)
			n.clean(t)
		})
	}
}

// runningSince is when the container of a running pod started.
func runningSince(pod *corev1.Pod) time.Time {
	return pod.Status.ContainerStatuses[0].State.Running.StartedAt.Time
}

// waitLog waits until the pod has printed a text.
func (s *suite) waitLog(t *testing.T, pod client.ObjectKey, want string) {
	t.Helper()
	eventually(t, soon, pod.Name+" to print "+want, func() string {
		if got := s.logged(t, pod); !strings.Contains(got, want) {
			return "it printed\n" + got
		}
		return ""
	})
}
