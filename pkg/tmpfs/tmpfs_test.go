// SPDX-License-Identifier: Apache-2.0

package tmpfs

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const size = 4 << 20

// mounted mounts a file system at a new directory.
func mounted(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := filepath.Join(t.TempDir(), "claims", "u1")
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // what a failed test has left
	must(t, Mount("test", dir, size))
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestMount: a file system has its size, keeps its files when it is mounted again, and is gone when it is unmounted.
func TestMount(t *testing.T) {
	dir := mounted(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, make([]byte, size+1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("it takes more than its size: %v", err)
	}
	must(t, os.Truncate(file, 1))
	must(t, Mount("test", dir, 2*size))
	if info, err := os.Stat(file); err != nil || info.Size() != 1 {
		t.Errorf("mounted again: got file %v, error %v, want the old one", info, err)
	}
	held, err := os.Open(file) // as a container that still runs has it
	must(t, err)
	defer held.Close()
	must(t, Unmount(dir))
	must(t, Unmount(dir))
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("unmounted: got %v, error %v, want an empty directory", left, err)
	}
	if n, err := held.Read(make([]byte, 1)); n != 1 {
		t.Errorf("a container cannot read its file: %v", err)
	}
	must(t, os.Remove(dir))
	must(t, Unmount(dir))
}

// TestUsers: users without rights, and one in a user namespace, make files and read each other's. They cannot remove
// those of others, nor run programs from there.
func TestUsers(t *testing.T) {
	dir := mounted(t)
	as := func(uid uint32, script string) string {
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return "error: " + string(bytes.TrimSpace(out))
		}
		return string(bytes.TrimSpace(out))
	}
	inNamespace := func(script string) string { // root there is user 70000 outside
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = dir
		ids := []syscall.SysProcIDMap{{HostID: 70000, Size: 1000}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
			Credential: &syscall.Credential{}}
		out, err := cmd.CombinedOutput()
		if err != nil && len(out) == 0 {
			t.Skipf("no user namespaces here: %v", err)
		}
		return string(bytes.TrimSpace(out))
	}
	for _, row := range []struct{ name, got, want string }{
		{"a user writes", as(1000, "echo one > a && chmod 644 a && cat a"), "one"},
		{"another reads that", as(2000, "cat a"), "one"},
		{"and cannot remove it", as(2000, "rm -f a"), "error: rm: cannot remove 'a': Operation not permitted"},
		{"nor run a program", as(1000, "printf '#!/bin/sh\n' > run && chmod 755 run && ./run"),
			"error: sh: 2: ./run: Permission denied"},
		{"one in a user namespace reads and writes", inNamespace("cat a && echo two > b && chmod 644 b && cat b"),
			"one\ntwo"},
		{"which others read", as(1000, "cat b"), "two"},
	} {
		if !strings.HasPrefix(row.got, row.want) {
			t.Errorf("%s: got %q, want %q", row.name, row.got, row.want)
		}
	}
}

func BenchmarkMount(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("mounting needs root")
	}
	dir := filepath.Join(b.TempDir(), "u1")
	for b.Loop() {
		if err := errors.Join(Mount("test", dir, size), Unmount(dir)); err != nil {
			b.Fatal(err)
		}
	}
}
