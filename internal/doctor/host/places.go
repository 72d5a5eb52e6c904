// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Writable says whether there can be files in a directory; nil when there can, else why not. One that is not there yet is judged by
// the one above. Nothing is written.
func Writable(dir string) error {
	for {
		err := unix.Access(dir, unix.W_OK|unix.X_OK)
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return err
		}
		dir = filepath.Dir(dir)
	}
}

// Places finds those of the directories of the host that the driver cannot write to. writable is Writable, but in tests.
func Places(root Root, dirs []string, writable func(dir string) error) []Problem {
	var out []Problem
	for _, dir := range dirs {
		if err := writable(root.path(dir)); err != nil {
			out = append(out, ReadOnly.Found("%s cannot be written to: %v", dir, err))
		}
	}
	return out
}

// CgroupVersion is that of the control groups that are mounted there, 0 when there are none.
func CgroupVersion(dir string) int {
	if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
		return 2
	}
	if _, err := os.Stat(dir); err == nil {
		return 1
	}
	return 0
}

// firstPIDs is the PID namespace that a machine starts with (PROC_PID_INIT_INO of the kernel).
const firstPIDs = "pid:[4026531836]"

// SeesAllPIDs says whether this process sees those of the whole machine, by what proc says of it.
func SeesAllPIDs(proc string) bool {
	namespace, err := os.Readlink(filepath.Join(proc, "self/ns/pid"))
	return err == nil && namespace == firstPIDs
}
