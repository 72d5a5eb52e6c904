// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cgroups"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/residue"
)

// warmUp runs a cluster once: the kernel loads modules on first use, and they add sysctls and stay loaded.
func warmUp(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/modules"); err != nil {
		return
	}
	name := ours + "-warm"
	ending(t, name)
	must(t, "up", "--name", name, "--nodes", "1")
	must(t, "down", "--name", name)
}

func TestMachineIsAsBefore(t *testing.T) {
	requireMachine(t)
	warmUp(t)
	name := ours + "-residue"
	ending(t, name)
	archive := writeArchive(t, "localhost/load-test:1")

	t.Run("after up, pods and down", func(t *testing.T) {
		leavesNothing(t, func(t *testing.T) {
			must(t, "up", "--name", name, "--nodes", "2")
			must(t, "load", archive, "--name", name)
			kubectl := newKubectl(t, name)
			kubectl(daemonSet, "apply", "-f", "-")
			kubectl("", "rollout", "status", "daemonset/load-test", "--timeout=60s")
			must(t, "down", "--name", name) // with running pods
			must(t, "down", "--name", name) // idempotent
		})
	})
	for _, stage := range cluster.Stages() {
		t.Run("after up was killed at stage "+stage+" and down", func(t *testing.T) {
			leavesNothing(t, func(t *testing.T) {
				killedAt(t, stage, name)
				must(t, "down", "--name", name)
			})
		})
	}
	t.Run("after up was killed, up, and down twice", func(t *testing.T) {
		leavesNothing(t, func(t *testing.T) {
			killedAt(t, cluster.StageAPI, name)
			must(t, "up", "--name", name, "--nodes", "1")
			must(t, "status", "--name", name)
			must(t, "down", "--name", name)
			must(t, "down", "--name", name)
		})
	})
	t.Run("after up was interrupted, without down", func(t *testing.T) {
		leavesNothing(t, func(t *testing.T) {
			up := command(t, "up", "--name", name, "--nodes", "1")
			until(t, up, "API server ready")
			if err := up.Process.Signal(unix.SIGINT); err != nil {
				t.Fatal(err)
			}
			if err := up.Wait(); err == nil {
				t.Fatal("up succeeded although it was interrupted")
			}
		})
	})
}

// killedAt starts a cluster and kills `up` at the stage.
func killedAt(t *testing.T, stage, name string) {
	t.Helper()
	up := command(t, "up", "--name", name, "--nodes", "2")
	up.Env = append(os.Environ(), "GPU_DRA_CLUSTER_STOP_AT="+stage)
	until(t, up, "stopped at "+stage)
	if err := up.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = up.Wait()
}

// TestPlantedResidue checks that the comparison finds residue.
func TestPlantedResidue(t *testing.T) {
	requireMachine(t)
	mountPoint := t.TempDir()
	layout, err := cgroups.Detect()
	if err != nil {
		t.Fatal(err)
	}
	group := filepath.Join(layout[0].Root, ours+"-planted")
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "planted0"}}
	const sysctl = "/proc/sys/net/ipv4/ip_default_ttl"
	ttl, err := os.ReadFile(sysctl)
	if err != nil {
		t.Fatal(err)
	}
	nft := func(args ...string) func() error {
		return func() error { return exec.Command("nft", args...).Run() }
	}
	for _, row := range []struct {
		name          string
		plant, remove func() error
		want          string // begins the first change
	}{
		{
			"a sysctl",
			func() error { return os.WriteFile(sysctl, []byte("63"), 0o644) },
			func() error { return os.WriteFile(sysctl, ttl, 0o644) },
			"+ sysctl net.ipv4.ip_default_ttl = 63",
		},
		{
			"a mount",
			func() error { return unix.Mount("planted", mountPoint, "tmpfs", 0, "") },
			func() error { return unix.Unmount(mountPoint, 0) },
			"+ mount " + mountPoint,
		},
		{
			"a link",
			func() error { return netlink.LinkAdd(link) },
			func() error { return netlink.LinkDel(link) },
			"+ link planted0",
		},
		{
			"a control group",
			func() error { return os.Mkdir(group, 0o755) },
			func() error { return unix.Rmdir(group) },
			"+ cgroup " + group,
		},
		{
			"a firewall rule",
			nft("add", "table", "inet", "planted"),
			nft("delete", "table", "inet", "planted"),
			"+ firewall table inet planted",
		},
	} {
		t.Run(row.name+" is found", func(t *testing.T) {
			before := snapshot(t)
			if err := row.plant(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := row.remove(); err != nil {
					t.Errorf("remove what was planted: %v", err)
				}
			})
			after := snapshot(t)
			got := strings.Join(residue.Diff(before, after), "\n")
			if !strings.Contains("\n"+got, "\n"+row.want) {
				t.Errorf("got changes:\n%s\nwant one that begins: %s", got, row.want)
			}
		})
	}
}
