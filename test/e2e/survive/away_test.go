//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testAPIServerAway stops the API server while the plugin prepares a claim, and again while pods end and the plugin is
// killed.
func (n node) testAPIServerAway(t *testing.T) {
	ns := n.namespace(t, "away")
	var whole string
	eventually(t, soon, "GPUs to be published, none of them sick", func() string {
		if whole = n.gpus(t); whole == "" {
			return "there is none" // a kubelet removes its node's slices when it starts
		} else if strings.Contains(whole, ":") {
			return whole // from an earlier test
		}
		return ""
	})
	keeper := n.pod(t, ns, "keeper", "")
	n.running(t, keeper)
	before := n.left(t)
	stubborn := n.pod(t, ns, "removed", "", shell(holdLock), grace(3*time.Second))
	n.running(t, stubborn)
	var gpu string
	for free := range strings.SplitSeq(whole, "\n") {
		if free != n.device(t, keeper) && free != n.device(t, stubborn) {
			gpu = free
		}
	}

	n.simctl(t, "slow", gpu, "CreateGpuInstanceWithPlacement", "1h") // until it is healed
	pod := n.partition(t, ns, "prepared", gpu)
	ip := n.plugin(t).Status.PodIP
	for tries := 1; ; tries++ {
		eventually(t, soon, "the plugin to be at work", func() string { return n.inFlight(t, "prepare") })
		n.control(t, "stop", "apiserver")
		if n.metric(t, ip, inFlight("prepare")) == "" {
			break
		}
		if tries == 5 {
			t.Fatal("the plugin was done before the API server was away")
		}
		// The kubelet has given up its call, which it does after 45 s: an API server may stop slowly.
		n.startAPIServer(t)
		n.tryAgain(t, pod)
	}
	n.sh(t, "nsenter --mount --target $(pgrep -f '[d]ra-kubelet-plugin-sim --registry-dir') "+
		kube.SimulatedPlugin+" simctl --dir "+simDir+" heal "+gpu) // kubectl exec needs the API server
	eventually(t, soon, "the claim to be prepared without the API server", func() string {
		records := n.records(t)
		if len(records) < 3 || slices.ContainsFunc(records, func(r checkpoint.PreparedClaim) bool {
			return r.Phase != checkpoint.Prepared
		}) {
			return fmt.Sprint(records)
		}
		return ""
	})
	n.control(t, "start", "apiserver")
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

	// While the API server is down again, pods end and the plugin is killed. It starts, answers, and does not change a
	// claim that was prepared before.
	n.hears(t, ns)
	n.remove(t, pod, stubborn)
	n.control(t, "stop", "apiserver")
	away := true
	defer func() { // the tests that follow need it
		if away {
			n.startAPIServer(t)
		}
	}()
	unchanged := func() string { return is(n.left(t), before) }
	eventually(t, soon, "claims to be released without the API server", unchanged)
	n.sh(t, "pkill -9 -f '[d]ra-kubelet-plugin-sim --registry-dir'")
	begin := time.Now()
	eventually(t, soon, "the plugin to answer again", func() string { return n.metric(t, ip, "gpu_dra_") })
	for time.Since(begin) < holdDuration(t, 30*time.Second) {
		if problem := unchanged(); problem != "" {
			t.Fatalf("while the API server is away: %s", problem)
		}
		time.Sleep(time.Second)
	}
	away = false
	n.startAPIServer(t)
	n.gone(t, pod, stubborn)
	eventually(t, soon, "the GPUs to be published", func() string { return is(n.gpus(t), whole) })
	after := n.pod(t, ns, "after", "")
	n.running(t, after)
	n.remove(t, keeper, after)
	n.gone(t, keeper, after)
	n.clean(t)
}

// hears waits until the kubelet hears of a new pod, one without claims. It asks an API server that was away only some
// time after that is back.
func (n node) hears(t *testing.T, namespace string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "heard"}, Spec: corev1.PodSpec{
		NodeName: n.name, Containers: []corev1.Container{{Name: "main", Image: n.image,
			Command: []string{"gpu-demo", "alloc", "1Mi", "--stay"}}}}}
	must(t, n.Create(t.Context(), pod))
	key := client.ObjectKeyFromObject(pod)
	eventually(t, soon, "the kubelet to hear of a pod", func() string {
		if n.get(t, key).Status.StartTime == nil {
			return "not yet"
		}
		return ""
	})
	n.remove(t, key)
}

// startAPIServer starts the API server and waits until the cluster has recovered. For a minute or two,
// kube-controller-manager takes the nodes for lost and their pods for not ready (and an update of a DaemonSet replaces
// such a pod before the new one is ready), and the nodes' kube-proxies refuse connections to the API server.
func (s *suite) startAPIServer(t *testing.T) {
	t.Helper()
	s.control(t, "start", "apiserver")
	const (
		// kube-controller-manager and the kubelets watch again after pauses of up to a minute each, and a node is
		// called ready only when both do.
		patience = 2 * soon
		steady   = 10 * time.Second // two periods in which kube-controller-manager looks at the nodes
	)
	since, last := time.Now(), "nothing"
	eventually(t, patience, "the cluster to recover", func() string {
		problem := s.recovering(t)
		switch {
		case problem != "":
			since, last = time.Now(), problem
		case time.Since(since) < steady:
			problem = "it has only just recovered from: " + last
		}
		return problem
	})
}

// recovering returns what is wrong with a node or its plugin, an empty string for nothing.
func (s *suite) recovering(t *testing.T) string {
	t.Helper()
	var nodes corev1.NodeList
	must(t, s.List(t.Context(), &nodes))
	for i := range nodes.Items {
		node := &nodes.Items[i]
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return node.Name + " is not ready"
			}
		}
		for _, taint := range node.Spec.Taints {
			if strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
				return node.Name + " has the taint " + taint.Key
			}
		}
		if got := s.node(node.Name).sh(t, "timeout 60 bash -c '< /dev/tcp/10.96.0.1/443' 2>&1; true"); got != "" {
			return node.Name + ": " + got
		}
	}
	pods, err := s.Pods(t.Context(), release, kube.PluginLabels)
	must(t, err)
	for i := range pods {
		if !ready(&pods[i]) {
			return pods[i].Name + " is not ready"
		}
	}
	return ""
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
