// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// openNode opens a device node as a CUDA program would and closes it again.
func openNode(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// verdict returns the meaning of an open's result. The device cgroup decides before the kernel looks for a driver, so
// ENXIO (no driver) also means that the container has access: that is how a simulated GPU answers.
func verdict(err error) string {
	switch {
	case err == nil, errors.Is(err, unix.ENXIO):
		return "allowed"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return "denied (" + errnoName(err) + ")"
	}
	return errnoName(err)
}

// openNumbers creates its own device node, so that the result comes from the device cgroup and not from a missing file.
func openNumbers(major, minor string, out io.Writer) error {
	ma, err := strconv.ParseUint(major, 10, 32)
	if err != nil {
		return fmt.Errorf("major %q: %w", major, err)
	}
	mi, err := strconv.ParseUint(minor, 10, 32)
	if err != nil {
		return fmt.Errorf("minor %q: %w", minor, err)
	}
	dir, err := os.MkdirTemp("", "gpu-demo-")
	if err != nil {
		return fmt.Errorf("make a directory for the node: %w", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "node")
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(uint32(ma), uint32(mi)))); err != nil {
		_, err = fmt.Fprintf(out, "mknod %d:%d: %s\n", ma, mi, errnoName(err))
		return err
	}
	_, err = fmt.Fprintf(out, "open %d:%d: %s\n", ma, mi, errnoName(openNode(path)))
	return err
}

func errnoName(err error) string {
	var errno unix.Errno
	switch {
	case err == nil:
		return "OK"
	case errors.As(err, &errno) && unix.ErrnoName(errno) != "":
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// sleep blocks until the context ends or the duration in args has passed.
func sleep(ctx context.Context, args []string) error {
	if len(args) == 0 {
		<-ctx.Done()
		return nil
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return fmt.Errorf("duration %q: %w", args[0], err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return nil
}
