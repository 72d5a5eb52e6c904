// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mount gives the machine its own view of the standard paths: programs and charts find them as on any node, and nothing
// is created on the host's root.
func mount(spec Spec) error {
	// From here on, mounts do not propagate to the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// Opened before the mounts below: they may cover the cache or the state.
	home, err := openFolder(spec.Dir)
	if err != nil {
		return err
	}
	components := map[string]*os.File{}
	for name, dir := range spec.Components {
		if components[name], err = openFolder(dir); err != nil {
			return err
		}
	}
	for _, dir := range spec.Overlays {
		if err := overlay(spec.Dir, dir); err != nil {
			return err
		}
	}
	for _, dir := range spec.Fresh {
		if err := fresh(home, dir); err != nil {
			return err
		}
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if err := show(home, Home); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(components)) {
		if err := show(components[name], filepath.Join(Bin, name)); err != nil {
			return err
		}
	}
	for _, target := range slices.Sorted(maps.Keys(spec.Mounts)) {
		if err := show(components[spec.Mounts[target]], target); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Pretend)) {
		if err := pretend(name, spec.Pretend[name]); err != nil {
			return err
		}
	}
	if err := pretend(bootID, newUUID()); err != nil {
		return err
	}
	// Pods may request mount propagation; it is limited to the machine.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return os.Chdir("/")
}

func openFolder(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open folder %s: %w", dir, err)
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// show mounts the opened folder at target. It does not use nodev, because device nodes in hostPath volumes must work.
func show(source *os.File, target string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", source.Fd()), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source.Name(), target, err)
	}
	return nil
}

// overlay makes changes of the folder private to the machine.
func overlay(home, dir string) error {
	base := filepath.Join(home, "overlay", strings.Trim(dir, "/"))
	upper, work := filepath.Join(base, "upper"), filepath.Join(base, "work")
	for _, d := range []string{upper, work, dir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make overlay: %w", err)
		}
	}
	options := "lowerdir=" + dir + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay on %s: %w", dir, err)
	}
	return nil
}

// fresh covers the folder with an empty one on the machine's disk. It is not an overlay, because the container runtime
// creates overlays below /var and those cannot be nested, and because a node should not see the host's files there.
func fresh(home *os.File, dir string) error {
	// By descriptor, because the folder's path may be covered by now.
	source := filepath.Join(fmt.Sprintf("/proc/self/fd/%d", home.Fd()), "disk", strings.Trim(dir, "/"))
	if err := os.MkdirAll(source, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := furnish(source, dir); err != nil {
		return fmt.Errorf("furnish %s: %w", dir, err)
	}
	if err := unix.Mount(source, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

func furnish(source, dir string) error {
	switch dir {
	case "/tmp":
		return os.Chmod(source, os.ModeSticky|0o777)
	case "/var":
		for _, sub := range []string{"cache", "lib", "log", "spool", "tmp"} {
			if err := os.MkdirAll(filepath.Join(source, sub), 0o755); err != nil {
				return err
			}
		}
		for link, target := range map[string]string{"run": "/run", "lock": "/run/lock"} {
			if err := os.Symlink(target, filepath.Join(source, link)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		return os.Chmod(filepath.Join(source, "tmp"), os.ModeSticky|0o777)
	}
	return nil
}

// pretend covers a sysctl of the host with a file that already has the wanted value. A program has no reason to write
// it, and a write does not change the host.
func pretend(name, value string) error {
	path := sysctlPath(name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil // this kernel does not have it
	}
	file := filepath.Join(pretended, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("pretend sysctl %s: %w", name, err)
	}
	// Whoever waits for the file must not read it before it is written: the cluster takes the boot ID from it.
	written := file + ".new"
	if err := os.WriteFile(written, []byte(value+"\n"), 0o644); err != nil {
		return fmt.Errorf("pretend sysctl %s: %w", name, err)
	}
	if err := os.Rename(written, file); err != nil {
		return fmt.Errorf("pretend sysctl %s: %w", name, err)
	}
	if err := unix.Mount(file, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pretend sysctl %s: %w", name, err)
	}
	return nil
}

// newUUID returns a random UUID (version 4) in the kernel's format.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
