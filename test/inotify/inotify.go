// SPDX-License-Identifier: Apache-2.0

// Package inotify tells tests about inotify instances. A user has few of them (fs.inotify.max_user_instances), and the
// programs of the machine may have used them up.
package inotify

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Need skips the test if no instance is left. Without one, the driver works with timers, and the test would wait for
// them or test nothing.
func Need(t testing.TB) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Skipf("fs.inotify.max_user_instances is used up: %v", err)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
}

// Count returns the number of instances of this process.
func Count(t testing.TB) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if is, err := os.Readlink(file); err == nil && is == "anon_inode:inotify" {
			n++
		}
	}
	return n
}
