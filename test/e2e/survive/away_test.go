//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testAPIServerAway takes the API server away while the plugin prepares a claim, and once more while a pod ends.
func (n node) testAPIServerAway(t *testing.T) {
	ns := n.namespace(t, "away")
	var gpu string
	eventually(t, soon, "GPUs to be published", func() string {
		gpu, _, _ = strings.Cut(n.gpus(t), "\n")
		if gpu == "" {
			return "there is none" // a kubelet that has just started removes the slices of its node
		}
		return ""
	})

	// Long enough for the API server to end, which takes up to 5 s. The longer it is away, the longer kube-controller-manager waits until it
	// looks again: 56 s after it was away for 18 s.
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

// inFlight is the line of the plugin's metrics that says that it is at such a call.
func inFlight(operation string) string {
	return fmt.Sprintf(`gpu_dra_operations_in_flight{operation=%q} 1`, operation)
}

// inFlight says nothing when the plugin is at such a call.
func (n node) inFlight(t *testing.T, operation string) string {
	t.Helper()
	return n.metric(t, n.plugin(t).Status.PodIP, inFlight(operation))
}

// metric says nothing when the plugin's metrics have the line.
func (n node) metric(t *testing.T, ip, line string) string {
	t.Helper()
	const ask = `exec 3<>/dev/tcp/%s/8081; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3`
	return n.sh(t, fmt.Sprintf(`bash -c "`+ask+`" | grep -qF %s || echo "not yet"`, ip, "'"+line+"'"))
}
