// SPDX-License-Identifier: Apache-2.0

// Package tmpfs mounts file systems in memory, of limited size, for containers that share a directory. The host must
// see the mounts of this process: the volume with the directory has the mount propagation Bidirectional.
package tmpfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// flags are the flags of the mounts. Programs of the driver open files there as root, so no symbolic link may lead them
// out. Linux has MS_NOSYMFOLLOW since 5.10; older kernels ignore the bit, because mount(2) refuses no unknown flag: it
// only picks the known ones.
const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOSYMFOLLOW

// Mount mounts a tmpfs of size bytes at the directory, writable for all users. Tables of mounts name the source. It
// keeps a tmpfs that is mounted there, and sets its flags, because an older version may have mounted it with others.
func Mount(source, dir string, size uint64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	mounted, err := isMountPoint(dir)
	if err != nil {
		return err
	}
	if mounted {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
			return fmt.Errorf("set the mount flags of %s: %w", dir, err)
		}
		return nil
	}
	current, err := os.ReadFile("/proc/self/attr/current")
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EINVAL) { // without SELinux and AppArmor
		return err
	}
	options := fmt.Sprintf("size=%d,nr_inodes=%d,mode=1777", size, max(1024, size>>14)) // empty files take memory, too
	mount := func(options string) error {
		return unix.Mount(source, dir, "tmpfs", flags, options)
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

// Unmount unmounts the file system of the directory, if one is mounted there. Containers that still have it keep it.
func Unmount(dir string) error {
	mounted, err := isMountPoint(dir)
	if mounted {
		err = unix.Unmount(dir, unix.MNT_DETACH)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
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
