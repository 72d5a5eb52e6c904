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

// holdLock is a program that locks a file as long as it runs, ignores SIGTERM, and reports if the file is already
// locked.
const holdLock = `trap "" TERM
exec 9>/var/lib/handover.lock
flock --nonblock 9 && echo alone || echo together
while :; do sleep 0.1; done`

// testHandover force-deletes a pod: its claim no longer exists, and the next pod gets the GPU while the container still
// runs.
func (n node) testHandover(t *testing.T) {
	for _, row := range []struct {
		name    string
		options []podOption
		says    string
	}{
		{"a program that ends on SIGTERM", nil, "GPU 0"},
		// The kubelet gives it 2 s, whatever the pod's spec.
		{"a program that ignores SIGTERM, in a pod that has time",
			[]podOption{shell(holdLock), grace(20 * time.Second)}, "alone"},
	} {
		t.Run(row.name, func(t *testing.T) {
			ns := n.namespace(t, "handover")
			first := n.pod(t, ns, "first", "", row.options...)
			n.running(t, first)
			device := n.device(t, first)
			n.waitLog(t, first, row.says)
			n.force(t, first)
			next := n.pod(t, ns, "next", exactly(n.uuid(t, device)), row.options...)
			pod := n.running(t, next)
			if got := n.device(t, next); got != device {
				t.Fatalf("got %s, want %s", got, device)
			}
			n.waitLog(t, next, row.says)
			t.Logf("from created to running: %s by the API's clock",
				runningSince(pod).Sub(pod.CreationTimestamp.Time))
			n.neverRefused(t, next)
			n.force(t, next)
			n.clean(t)
		})
	}
}

// neverRefused checks that the plugin has prepared the pod's claims at the kubelet's first call.
func (s *suite) neverRefused(t *testing.T, pod client.ObjectKey) {
	t.Helper()
	events, err := s.Events(t.Context(), pod)
	must(t, err)
	for _, e := range events {
		if strings.HasPrefix(e, "FailedPrepareDynamicResources") {
			t.Errorf("%s had to be tried again: %s\n%s", pod.Name, e, s.Diagnose(t.Context(), pod.Namespace))
		}
	}
}

// runningSince returns the start time of a running pod's container.
func runningSince(pod *corev1.Pod) time.Time {
	return pod.Status.ContainerStatuses[0].State.Running.StartedAt.Time
}

// waitLog waits until the pod has printed the text.
func (s *suite) waitLog(t *testing.T, pod client.ObjectKey, want string) {
	t.Helper()
	eventually(t, soon, pod.Name+" to print "+want, func() string {
		if got := s.logged(t, pod); !strings.Contains(got, want) {
			return "it printed\n" + got
		}
		return ""
	})
}
