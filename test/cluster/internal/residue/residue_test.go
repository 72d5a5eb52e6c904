// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"strings"
	"testing"
)

func TestDiff(t *testing.T) {
	for _, row := range []struct{ name, before, after, want string }{
		{"nothing changed", "a b", "a b", ""},
		{"another order is no change", "a b", "b a", ""},
		{"one came", "a", "a b", "+ b"},
		{"one went", "a b", "a", "- b"},
		{"a second of the same came", "a", "a a", "+ a"},
		{"a value changed", "x=1", "x=2", "- x=1,+ x=2"},
		{"sorted by subject", "m a", "z b", "- a,+ b,- m,+ z"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := strings.Join(Diff(strings.Fields(row.before), strings.Fields(row.after)), ",")
			if got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func TestClusterOf(t *testing.T) {
	for _, row := range []struct{ name, line, want string }{
		{"a control group of a pod", "+ cgroup /sys/fs/cgroup/cpu/gpu-dra-cluster.demo/node-1/kubepods", "demo"},
		{"the control group itself", "- cgroup /sys/fs/cgroup/gpu-dra-cluster.e2e", "e2e"},
		{"another control group", "+ cgroup /sys/fs/cgroup/cpu/other", ""},
		{"a process", "+ process [demo] 12 /pause", "demo"},
		{"a process outside clusters", "+ process 12 /pause [demo]", ""},
		{"a namespace", "namespace [demo] net:[4026531833] of \"/pause\"", "demo"},
		{"a folder", "+ path /var/lib/gpu-dra-cluster/demo", "demo"},
		{"a sysctl", "+ sysctl vm.panic_on_oom = 1", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := ClusterOf(row.line); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestParseMount(t *testing.T) {
	const line = "36 35 98:0 /mnt1 /mnt2 rw,noatime shared:7 master:1 - ext3 /dev/root rw,errors=continue\n"
	const want = "/mnt2 /mnt1 rw,noatime ext3 /dev/root rw,errors=continue"
	if got := parseMount(line); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMovingSysctlsAreLeftOut(t *testing.T) {
	for name, want := range map[string]bool{
		"kernel.random.uuid": true, "fs.quota.syncs": true,
		"kernel.panic": false, "kernel.random.boot_id": false, "net.ipv4.ip_forward": false,
	} {
		if got := moves(name); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

func TestClusterOfAProcessIsThatOfItsMachine(t *testing.T) {
	all := map[int]entry{
		1: {pid: 1, space: "host", command: "init"},
		5: {pid: 5, parent: 1, space: "node", command: "gpu-dra-cluster machine /var/lib/gpu-dra-cluster/demo/node-1"},
		6: {pid: 6, parent: 5, space: "node", command: "containerd-shim"},
		7: {pid: 7, parent: 6, space: "pod", command: "/pause"},
		8: {pid: 8, parent: 1, space: "host", command: "bash"},
		9: {pid: 9, parent: 8, space: "node", command: "run by exec"},
	}
	machines := map[string]string{"node": machineOf(all[5])}
	for pid, want := range map[int]string{5: "demo", 7: "demo", 9: "demo", 8: "", 1: ""} {
		if got := clusterOf(all[pid], all, machines); got != want {
			t.Errorf("process %d: got %q, want %q", pid, got, want)
		}
	}
}
