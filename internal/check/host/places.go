// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Writable returns an error if a directory is not writable, without writing. For a missing directory it checks the
// closest existing parent.
func Writable(dir string) error {
	for {
		err := unix.Access(dir, unix.W_OK|unix.X_OK)
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return err
		}
		dir = filepath.Dir(dir)
	}
}

// ReadOnlyDirs returns a problem for each directory of the host that is not writable. writable is Writable, except in
// tests.
func ReadOnlyDirs(root Root, dirs []string, writable func(dir string) error) []Problem {
	var out []Problem
	for _, dir := range dirs {
		if err := writable(root.path(dir)); err != nil {
			out = append(out, ReadOnly.Found("%s cannot be written to: %v", dir, err))
		}
	}
	return out
}

// RunsForAll returns an error unless every user can run the programs of a directory, as far as that depends on the
// directory itself.
func RunsForAll(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if info.Mode()&0o001 == 0 {
		return fmt.Errorf("mode %#o of %s keeps other users out", info.Mode().Perm(), dir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if st.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("%s is mounted noexec", dir)
	}
	return nil
}

// HooksDir returns a problem if not every user can run programs of the host's directory. Missing directories are the
// driver's to make.
func HooksDir(root Root, dir string) []Problem {
	for above := filepath.Dir(dir); above != "/"; above = filepath.Dir(above) {
		if info, err := os.Stat(root.path(above)); err == nil && info.Mode()&0o001 == 0 {
			return []Problem{HooksClosed.Found("mode %#o of %s keeps other users from %s", info.Mode().Perm(), above,
				dir)}
		}
	}
	if err := RunsForAll(root.path(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return []Problem{HooksClosed.Found("%v", err)}
	}
	return nil
}

// DevicePlugins returns a problem if NVIDIA's device plugin has registered with the kubelet.
func DevicePlugins(root Root) []Problem {
	const sockets = "/var/lib/kubelet/device-plugins/nvidia-*.sock" // not those of network cards: nvidia.com_NAME.sock
	if found := root.glob(sockets); len(found) > 0 {
		return []Problem{DevicePlugin.Found("NVIDIA's device plugin has sockets: %s", strings.Join(found, ", "))}
	}
	return nil
}

// OtherDrivers returns a problem if another driver serves the kubelet under the name. The socket of this driver has the
// UID of its pod in its name, too. The plugin's directory is <directory of the kubelet>/plugins/<name>.
func OtherDrivers(root Root, pluginDir, name string) []Problem {
	socket := filepath.Join(pluginDir, "../../plugins_registry", name+"-reg.sock")
	conn, err := net.Dial("unix", root.path(socket))
	if err != nil {
		return nil // there is none, or it was killed and has left its socket
	}
	_ = conn.Close()
	return []Problem{OtherDriver.Found("another driver of this node is registered as %s (%s answers)", name, socket)}
}

// CgroupVersion returns the version of the cgroups mounted at dir; 0 if there are none.
func CgroupVersion(dir string) int {
	if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
		return 2
	}
	if _, err := os.Stat(dir); err == nil {
		return 1
	}
	return 0
}

// firstPIDs is the initial PID namespace (PROC_PID_INIT_INO of the kernel).
const firstPIDs = "pid:[4026531836]"

// SeesAllPIDs reports whether this process is in the initial PID namespace, according to proc.
func SeesAllPIDs(proc string) bool {
	namespace, err := os.Readlink(filepath.Join(proc, "self/ns/pid"))
	return err == nil && namespace == firstPIDs
}
