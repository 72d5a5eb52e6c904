//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testAPIServerAway stops the API server while the plugin prepares a claim, and again while a pod ends.
func (n node) testAPIServerAway(t *testing.T) {
	ns := n.namespace(t, "away")
	var gpu string
	eventually(t, soon, "GPUs to be published", func() string {
		gpu, _, _ = strings.Cut(n.gpus(t), "\n")
		if gpu == "" {
			return "there is none" // a kubelet removes its node's slices when it starts
		}
		return ""
	})

	// Long enough for the API server to stop, which takes up to 5 s. The longer it is down, the longer
	// kube-controller-manager waits before it retries: 56 s after a downtime of 18 s.
	n.simctl(t, "slow", gpu, "GetMinorNumber", "8s")
	must(t, n.touchDriver())
	pod := n.pod(t, ns, "prepared", exactly(n.uuid(t, gpu)))
	eventually(t, soon, "the plugin to be at work", func() string { return n.inFlight(t, "prepare") })
	ip := n.plugin(t).Status.PodIP
	n.control(t, "stop", "apiserver")
	if got := n.metric(t, ip, inFlight("prepare")); got != "" {
		t.Fatal("the plugin was done before the API server was away")
	}
	eventually(t, soon, "the claim to be prepared without the API server", func() string {
		if len(n.records(t)) == 0 {
			return "there is no record"
		}
		return ""
	})
	n.control(t, "start", "apiserver")
	n.simctl(t, "heal", gpu)
	if got := n.running(t, pod).Status.ContainerStatuses[0].RestartCount; got != 0 {
		t.Errorf("got %d restarts, want none", got)
	}
	claim := n.claim(t, pod)
	eventually(t, soon, "the claim to be called ready", func() string {
		var now resourceapi.ResourceClaim
		must(t, n.Get(t.Context(), client.ObjectKeyFromObject(claim), &now))
		for _, device := range now.Status.Devices {
			if meta.IsStatusConditionTrue(device.Conditions, "Ready") {
				return ""
			}
		}
		return fmt.Sprintf("got status.devices %v", now.Status.Devices)
	})

	stubborn := n.pod(t, ns, "removed", "", shell(holdLock), grace(3*time.Second))
	n.running(t, stubborn)
	n.remove(t, pod, stubborn)
	n.control(t, "stop", "apiserver")
	eventually(t, soon, "claims to be released without the API server", func() string { return n.left(t) })
	n.control(t, "start", "apiserver")
	n.gone(t, pod, stubborn)
	n.clean(t)
}

// testStartWithoutAPIServer kills the plugin while the API server is down. It starts, answers, and publishes when the
// API server is back. It does not change a claim that was prepared before.
func (n node) testStartWithoutAPIServer(t *testing.T) {
	ns := n.namespace(t, "start-away")
	whole := n.gpus(t)
	before := n.pod(t, ns, "before", "")
	n.running(t, before)
	left := n.left(t)
	plugin := n.plugin(t)
	n.control(t, "stop", "apiserver")
	back := sync.OnceFunc(func() { n.control(t, "start", "apiserver") })
	defer back() // the tests that follow need it
	n.sh(t, "pkill -9 -f '[d]ra-kubelet-plugin-sim --driver-name'")
	begin := time.Now()
	eventually(t, soon, "the plugin to answer again", func() string {
		return n.metric(t, plugin.Status.PodIP, "gpu_dra_")
	})
	for time.Since(begin) < holdDuration(t, 30*time.Second) {
		if now := n.left(t); now != left {
			t.Fatalf("while the API server is away: %s", is(now, left))
		}
		time.Sleep(time.Second)
	}
	back()
	n.plugin(t)
	eventually(t, soon, "the GPUs to be published", func() string { return is(n.gpus(t), whole) })
	after := n.pod(t, ns, "after", "")
	n.running(t, after)
	n.remove(t, before, after)
	n.gone(t, before, after)
	n.clean(t)
}

// inFlight is the line of the plugin's metrics for a call of the operation that is in progress.
func inFlight(operation string) string {
	return fmt.Sprintf(`gpu_dra_operations_in_flight{operation=%q} 1`, operation)
}

// inFlight returns an empty string if such a call is in progress.
func (n node) inFlight(t *testing.T, operation string) string {
	t.Helper()
	return n.metric(t, n.plugin(t).Status.PodIP, inFlight(operation))
}

// metric returns an empty string if the plugin's metrics have the line.
func (n node) metric(t *testing.T, ip, line string) string {
	t.Helper()
	const ask = `exec 3<>/dev/tcp/%s/8081; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3`
	return n.sh(t, fmt.Sprintf(`bash -c "`+ask+`" | grep -qF %s || echo "not yet"`, ip, "'"+line+"'"))
}
