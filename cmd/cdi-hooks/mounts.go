// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

const (
	cacheFile = "/etc/ld.so.cache"
	etcDir    = "/etc"
	confDir   = "/etc/ld.so.conf.d" // may be a volume of its own
)

// minInodes is more than what anything here needs.
const minInodes = 1 << 20

// link returns a path of an open file. It also leads to files below a mount that covers them.
func link(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// scratch covers a directory of the container with a file system in memory, and returns that. remove uncovers it. The
// directory may be in a volume, where a running container replaces it meanwhile: nothing is written into another one.
func scratch(root, dir string) (memory *os.File, remove func(), err error) {
	covered, err := pathrs.OpenInRoot(root, dir)
	if err != nil {
		return nil, nil, err
	}
	defer covered.Close()
	inodes := minInodes + rand.Uint64N(1<<30) // a limit by which the file system is known
	if err := unix.Mount("tmpfs", link(covered), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV,
		fmt.Sprintf("mode=755,nr_inodes=%d", inodes)); err != nil {
		return nil, nil, fmt.Errorf("mount a file system in memory at %s: %w", dir, err)
	}
	if memory, err = pathrs.OpenInRoot(root, dir); err != nil {
		return nil, nil, err
	}
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(memory.Fd()), &stat); err != nil || stat.Files != inodes {
		return nil, nil, errors.Join(fmt.Errorf("%s was replaced while a file system was mounted there", dir), err,
			memory.Close())
	}
	return memory, func() {
		for unix.Unmount(link(memory), unix.MNT_DETACH) == nil { // first what is mounted on it, then itself
		}
		memory.Close()
	}, nil
}

// putFile replaces a file of the container.
func putFile(root, path string, content []byte) error {
	dir, err := pathrs.OpenInRoot(root, filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	in, err := os.OpenRoot(link(dir))
	if err != nil {
		return err
	}
	defer in.Close()
	name := filepath.Base(path)
	if err := in.WriteFile(name+"~", content, 0o644); err != nil {
		return err
	}
	err = in.Chmod(name+"~", 0o644) // whatever the umask
	if err == nil {
		err = in.Rename(name+"~", name)
	}
	if err != nil {
		return errors.Join(err, in.Remove(name+"~"))
	}
	return nil
}

// mountFile mounts a read-only file with the content on a file of the container. Error: fs.ErrNotExist if it has none.
func mountFile(root, path string, content []byte) error {
	if err := mountContent(root, path, content); err != nil {
		return err
	}
	mounted, err := pathrs.OpenInRoot(root, path)
	if err != nil {
		return err
	}
	defer mounted.Close()
	return unix.Mount("", link(mounted), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV,
		"")
}

func mountContent(root, path string, content []byte) error {
	target, err := pathrs.OpenInRoot(root, path)
	if err != nil {
		return err
	}
	defer target.Close()
	memory, remove, err := scratch(root, "/")
	if err != nil {
		return err
	}
	defer remove()
	source := link(memory) + "/file"
	if err := errors.Join(os.WriteFile(source, content, 0o644), os.Chmod(source, 0o444)); err != nil {
		return err
	}
	return unix.Mount(source, link(target), "", unix.MS_BIND, "")
}

// onLayer runs a function while a writable layer covers the container's /etc and /etc/ld.so.conf.d, and returns the
// cache of the loader that it leaves there. A container without /etc gets one.
func onLayer(root string, run func() error) ([]byte, error) {
	if err := pathrs.MkdirAll(root, etcDir, 0o755); err != nil {
		return nil, err
	}
	etc, err := pathrs.OpenInRoot(root, etcDir)
	if err != nil {
		return nil, err
	}
	defer etc.Close()
	conf, err := pathrs.OpenInRoot(root, confDir)
	if err == nil {
		defer conf.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	memory, remove, err := scratch(root, etcDir)
	if err != nil {
		return nil, err
	}
	defer remove()
	if err := layer(root, etcDir, etc, memory, "etc"); err != nil {
		return nil, err
	}
	if conf != nil {
		if err := layer(root, confDir, conf, memory, "conf"); err != nil {
			return nil, err
		}
	}
	if err := run(); err != nil {
		return nil, err
	}
	cache, err := pathrs.OpenInRoot(root, cacheFile)
	if err != nil {
		return nil, err
	}
	defer cache.Close()
	return os.ReadFile(link(cache))
}

// layer mounts at a path of the container what is in lower, with a writable layer in memory above it.
func layer(root, path string, lower, memory *os.File, name string) error {
	at, err := pathrs.OpenInRoot(root, path)
	if err != nil {
		return err
	}
	defer at.Close()
	upper, work := link(memory)+"/"+name, link(memory)+"/"+name+".work"
	if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", link(lower), upper, work)
	if err := unix.Mount("overlay", link(at), "overlay", 0, options); err != nil {
		return fmt.Errorf("mount a writable layer at %s: %w", path, err)
	}
	return nil
}
