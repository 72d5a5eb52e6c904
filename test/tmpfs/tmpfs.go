// SPDX-License-Identifier: Apache-2.0

// Package tmpfs gives tests directories in memory. What a test writes and syncs there, hundreds of times, waits for no
// disk.
package tmpfs

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// shm is where Linux has a file system in memory.
const shm = "/dev/shm"

// least is the free space that it must have. A test needs far less.
const least = 256 << 20

// Dir returns an empty directory in memory, which the end of the test removes. It is t.TempDir where the machine has no
// such file system, or one that is small or without programs and device nodes, as in many containers.
func Dir(t testing.TB) string {
	t.Helper()
	if !usable() {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(shm, "gpu-dra-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the directory of the test: %v", err)
		}
	})
	return dir
}

func usable() bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(shm, &fs); err != nil {
		return false
	}
	return fs.Type == unix.TMPFS_MAGIC && fs.Flags&(unix.ST_NOEXEC|unix.ST_NODEV|unix.ST_RDONLY) == 0 &&
		fs.Bavail*uint64(fs.Bsize) >= least
}
