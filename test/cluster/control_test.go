// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// bootID prints the node's boot ID, and whether the container of its pod has the same. The pod's sandbox, which runs
// the same program, has the host's: containerd does not start sandboxes from the base spec.
const bootID = `id=$(cat /proc/sys/kernel/random/boot_id)
for p in /proc/[0-9]*; do
	[ "$(cat $p/comm 2>/dev/null)" = pause ] && grep -qx "$id" $p/root/proc/sys/kernel/random/boot_id && same=container
done
echo $id $same`

// testControl stops, pauses and crashes the parts of a cluster of three nodes, with a pod on each, and checks that it
// recovers.
func testControl(t *testing.T, name string, kubectl func(input string, args ...string) string) {
	on := func(t *testing.T, node, script string) string {
		t.Helper()
		return strings.TrimSpace(must(t, "exec", "--name", name, node, "--", "sh", "-c", script))
	}
	t.Run("a node that crashes comes back with its disk, without its /run, and with another boot id",
		func(t *testing.T) {
			const marks = "ls /var/lib/mark /etc/mark /run/mark 2>/dev/null || true"
			on(t, "node-2", "touch /var/lib/mark /etc/mark /run/mark")
			before, other := on(t, "node-2", bootID), on(t, "node-1", bootID)
			must(t, "crash", "--name", name, "node-2")
			if got := fails(t, "status", "--name", name); !strings.Contains(got, "cluster is not up") {
				t.Errorf("status of a cluster with a node that crashed: got %q", got)
			}
			must(t, "start", "--name", name, "node-2")
			must(t, "status", "--name", name)
			if got, want := on(t, "node-2", marks), "/etc/mark\n/var/lib/mark"; got != want {
				t.Errorf("got files %q, want %q", got, want)
			}
			kubectl("", "rollout", "status", "daemonset/load-test", "--timeout="+hangs.String())
			var after string
			waitFor(t, "the container of node-2 to have its boot id", func() bool {
				after = on(t, "node-2", bootID)
				return strings.HasSuffix(after, " container")
			})
			if after == before || after == other || !strings.HasSuffix(before, " container") ||
				!strings.HasSuffix(other, " container") {
				t.Errorf("got boot ids %q before, %q after and %q of another node; want three, and containers to see "+
					"their node's", before, after, other)
			}
			if got := kubectl("", "get", "node", "node-2", "-o", "jsonpath={.status.nodeInfo.bootID}"); got+
				" container" != after {
				t.Errorf("the kubelet reports boot id %s, want %s", got, after)
			}
		})
	t.Run("a program is restarted", func(t *testing.T) {
		for _, program := range []string{"node-1/kubelet", "node-1/containerd", "etcd", "apiserver", "scheduler",
			"controller-manager"} {
			must(t, "restart", "--name", name, program)
		}
		on(t, "node-1", `[ "$(grep -c 'asked to end' /run/gpu-dra-cluster/machine/log/init.log)" = 2 ]`)
		kubectl("", "get", "--raw", "/readyz")
	})
	t.Run("a stopped program does not run until it is started", func(t *testing.T) {
		must(t, "stop", "--name", name, "apiserver")
		must(t, "stop", "--name", name, "apiserver") // idempotent
		time.Sleep(1500 * time.Millisecond)          // longer than the restart delay
		tool := strings.TrimSpace(must(t, "tools")) + "/kubectl"
		config := strings.TrimSpace(must(t, "kubeconfig", "--name", name))
		if out, err := exec.Command(tool, "--kubeconfig", config, "get", "--raw",
			"/readyz").CombinedOutput(); err == nil {
			t.Errorf("the API server answers: %s", out)
		}
		must(t, "start", "--name", name, "apiserver")
		kubectl("", "get", "--raw", "/readyz")
	})
	t.Run("a paused node is frozen until it is resumed", func(t *testing.T) {
		healthy := func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			path, err := binary()
			if err != nil {
				t.Fatal(err)
			}
			const ask = "exec 3<>/dev/tcp/127.0.0.1/10248; printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3; head -1 <&3"
			out, _ := exec.CommandContext(ctx, path, "exec", "--name", name, "node-3", "--", "timeout", "1", "bash",
				"-c", ask).CombinedOutput()
			return strings.Contains(string(out), "200 OK")
		}
		waitFor(t, "the kubelet to answer to begin with", healthy)
		must(t, "pause", "--name", name, "node-3")
		if got := must(t, "status", "--name", name); !strings.Contains(got, "paused") {
			t.Errorf("got status\n%s\nwant a paused node", got)
		}
		if healthy() {
			t.Error("the kubelet of a paused node answers")
		}
		must(t, "resume", "--name", name, "node-3")
		waitFor(t, "the kubelet to answer", healthy)
	})
	t.Run("an unknown name is refused", func(t *testing.T) {
		for _, row := range []struct{ verb, target, want string }{
			{"restart", "node-1/nothing", "there are containerd, kubelet, kube-proxy"},
			{"stop", "node-9/kubelet", "no machine node-9"},
			{"crash", "control-plane", "cannot crash"},
			{"start", "node-1", "it runs"},
			{"pause", "node-9", "no machine node-9"},
		} {
			if got := fails(t, row.verb, "--name", name, row.target); !strings.Contains(got, row.want) {
				t.Errorf("%s %s: got %q, want it to say: %s", row.verb, row.target, got, row.want)
			}
		}
	})
}

// hangs is when a wait gives up. Only a mistake takes so long, on any machine.
const hangs = 10 * time.Minute

// waitFor waits until the condition holds.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(hangs); !holds(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
