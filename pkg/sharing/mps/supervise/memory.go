// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/tmpfs"
)

// pipeSize is the size of a pipe directory on its own file system, which has sockets and little more.
const pipeSize = 1 << 20

// mountMemory mounts file systems for the pipes and the shared memory of a daemon that requests it, so that clients can
// fill neither the node's disk nor its memory. The host must see the mounts, because containers mount them too. They
// stay until the daemon is released, also over restarts.
func mountMemory(dir mps.Dir, d mps.Daemon) error {
	if d.SharedMemory == 0 {
		return nil
	}
	const source = "mps"
	return errors.Join(tmpfs.Mount(source, dir.Pipe(d.ID), pipeSize),
		tmpfs.Mount(source, dir.SharedMemory(d.ID), d.SharedMemory))
}

// unmountMemory unmounts the file systems of a daemon. Containers that still have them mounted keep them.
func unmountMemory(dir mps.Dir, id string) error {
	return errors.Join(tmpfs.Unmount(dir.Pipe(id)), tmpfs.Unmount(dir.SharedMemory(id)))
}

// WithSharedMemory is a first argument of the program that runs a supervisor. With it, the program must only call
// ExecWithSharedMemory with the other arguments.
const WithSharedMemory = "exec-with-shared-memory"

// ExecWithSharedMemory executes the program in args[1:], with the directory args[0] as /dev/shm. It must run in its own
// mount namespace, and returns only after an error.
func ExecWithSharedMemory(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: " + WithSharedMemory + " DIRECTORY PROGRAM [ARGUMENT...]")
	}
	if err := unix.Mount(args[0], "/dev/shm", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at /dev/shm: %w", args[0], err)
	}
	return unix.Exec(args[1], args[1:], os.Environ())
}

// withSharedMemory returns a command that runs the program with the daemon's shared memory as /dev/shm.
func withSharedMemory(dir mps.Dir, d mps.Daemon, program string, args []string) *exec.Cmd {
	if d.SharedMemory == 0 {
		return exec.Command(program, args...)
	}
	cmd := exec.Command("/proc/self/exe", append([]string{WithSharedMemory, dir.SharedMemory(d.ID), program},
		args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	return cmd
}
