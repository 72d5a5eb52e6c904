// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUnfitMachine runs `up` where it cannot work: it must report the reason in one sentence and leave nothing.
func TestUnfitMachine(t *testing.T) {
	requireMachine(t)
	for _, row := range []struct {
		name string
		run  func(t *testing.T, up *exec.Cmd) error
		want string
	}{
		{"the user is not root", asNobody, "cannot run a cluster here: a cluster needs namespaces, mounts and " +
			"control groups: run this as root"},
		{"namespaces are not allowed", without(unix.CAP_SYS_ADMIN), "cannot run a cluster here: the kernel does not " +
			"allow new namespaces"},
		{"links are not allowed", without(unix.CAP_NET_ADMIN), "cannot run a cluster here: the kernel lacks virtual " +
			"links (veth)"},
		{"device nodes are not allowed", without(unix.CAP_MKNOD), "cannot run a cluster here: device nodes cannot be " +
			"made (CAP_MKNOD)"},
		{"the disk takes no device nodes", onDisk(unix.MS_NODEV), "is mounted with nodev, so device nodes of " +
			"simulated GPUs would not work; choose another folder with --state"},
		{"the disk is read-only", onDisk(unix.MS_RDONLY), "is read-only; choose another folder with --state"},
	} {
		t.Run(row.name, func(t *testing.T) {
			leavesNothing(t, func(t *testing.T) {
				up := command(t, "up", "--name", ours+"-unfit", "--nodes", "1")
				var out strings.Builder
				up.Stdout, up.Stderr = &out, &out
				if err := row.run(t, up); err == nil {
					t.Fatal("up succeeded")
				}
				got := strings.TrimSpace(out.String())
				if !strings.Contains(got, row.want) || strings.Contains(got, "\n") {
					t.Errorf("got  %s\nwant one line with: %s", got, row.want)
				}
			})
		})
	}
}

func asNobody(t *testing.T, up *exec.Cmd) error {
	// os.MkdirTemp created it for root only.
	if err := os.Chmod(filepath.Dir(up.Path), 0o755); err != nil {
		t.Fatal(err)
	}
	up.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return up.Run()
}

// without runs `up` as root after dropping a capability permanently.
func without(capability uintptr) func(*testing.T, *exec.Cmd) error {
	return func(_ *testing.T, up *exec.Cmd) error {
		result := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread goes with its capabilities
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
				result <- nil // reported as a success, which fails the test
				return
			}
			result <- up.Run()
		}()
		return <-result
	}
}

// onDisk runs `up` with its state on a file system with that mount flag.
func onDisk(flag uintptr) func(*testing.T, *exec.Cmd) error {
	return func(t *testing.T, up *exec.Cmd) error {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", flag, ""); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		}()
		up.Args = append(up.Args, "--state", filepath.Join(dir, "state"))
		return up.Run()
	}
}
