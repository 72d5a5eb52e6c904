// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
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
	return errors.Join(mountTmpfs(dir.Pipe(d.ID), pipeSize), mountTmpfs(dir.SharedMemory(d.ID), d.SharedMemory))
}

// memoryFlags are the flags of the mounts that clients write to. The daemon opens files there as root, so no symbolic
// link may lead it out. Linux has MS_NOSYMFOLLOW since 5.10; older kernels ignore the bit, because mount(2) refuses no
// unknown flag: it only picks the known ones.
const memoryFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOSYMFOLLOW

// mountTmpfs mounts a tmpfs at the directory, writable for all users. It keeps one that is mounted there, and sets its
// flags, because an older supervisor may have mounted it with others.
func mountTmpfs(dir string, size uint64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	mounted, err := isMountPoint(dir)
	if err != nil {
		return err
	}
	if mounted {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|memoryFlags, ""); err != nil {
			return fmt.Errorf("set the mount flags of %s: %w", dir, err)
		}
		return nil
	}
	current, err := os.ReadFile("/proc/self/attr/current")
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EINVAL) { // without SELinux and AppArmor
		return err
	}
	options := fmt.Sprintf("size=%d,mode=1777", size)
	mount := func(options string) error {
		return unix.Mount("mps", dir, "tmpfs", memoryFlags, options)
	}
	err = mount(options + labelOption(string(current)))
	if errors.Is(err, unix.EINVAL) { // the policy has no such label
		err = mount(options)
	}
	if err != nil {
		return fmt.Errorf("mount a tmpfs of %d bytes at %s: %w", size, dir, err)
	}
	return nil
}

// labelOption returns the mount option with which SELinux lets containers use the file system, if the kernel has
// SELinux: then the label of this process is like system_u:system_r:spc_t:s0. AppArmor's labels are like unconfined.
func labelOption(current string) string {
	if strings.Count(current, ":") < 3 {
		return ""
	}
	return ",context=system_u:object_r:container_file_t:s0"
}

// unmountMemory unmounts the file systems of a daemon. Containers that still have them mounted keep them.
func unmountMemory(dir mps.Dir, id string) error {
	var errs []error
	for _, path := range []string{dir.Pipe(id), dir.SharedMemory(id)} {
		mounted, err := isMountPoint(path)
		if mounted {
			err = unix.Unmount(path, unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// isMountPoint reports whether a file system is mounted at the directory.
func isMountPoint(dir string) (bool, error) {
	var here, above unix.Stat_t
	if err := unix.Lstat(dir, &here); err != nil {
		return false, err
	}
	if err := unix.Lstat(filepath.Dir(dir), &above); err != nil {
		return false, err
	}
	return here.Dev != above.Dev, nil
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
