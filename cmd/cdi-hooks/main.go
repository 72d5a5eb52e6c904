// SPDX-License-Identifier: Apache-2.0

// cdi-hooks runs several CDI hooks of NVIDIA's container toolkit in one process. The container runtime would otherwise
// start NVIDIA's program once for each. The command line is that of nvidia-cdi-hook, with "--" between two hooks:
//
//	cdi-hooks create-symlinks --link libcuda.so.1::/usr/lib/libcuda.so -- update-ldcache --folder /usr/lib
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/commands"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args, os.Stdin); err != nil {
		logrus.Error(err)
		os.Exit(1)
	}
}

// run runs the hooks in their order, and stops at the first that fails. The container's state is what the runtime
// writes to each hook. As with NVIDIA's program, an unknown hook is no error, because a CDI spec may be newer.
func run(args []string, state io.Reader) error {
	stdin, err := copyOf(state)
	if err != nil {
		return fmt.Errorf("copy the container's state: %w", err)
	}
	defer stdin.Close()
	os.Stdin = stdin
	for _, hook := range split(args[1:]) {
		if _, err := stdin.Seek(0, io.SeekStart); err != nil {
			return err
		}
		setName(hook)
		// A command keeps the flags of its last run, so every hook has a new one.
		command := commands.ConfigureCDIHookCommand(logrus.StandardLogger(), &cli.Command{})
		if err := command.Run(context.Background(), slices.Concat(args[:1], hook)); err != nil {
			return fmt.Errorf("CDI hook %s: %w", command.Args().First(), err)
		}
	}
	return nil
}

// setName gives the thread the name of the hook, of which the kernel keeps 15 bytes. The kernel's process events have
// it, so that tools can tell how long each hook takes.
func setName(hook []string) {
	if len(hook) == 0 {
		return
	}
	if name, err := unix.BytePtrFromString(hook[0]); err == nil {
		_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0)
		runtime.KeepAlive(name)
	}
}

// split returns the command lines between the separators, which package nvml writes.
func split(args []string) [][]string {
	i := slices.Index(args, "--")
	if i < 0 {
		return [][]string{args}
	}
	return append([][]string{args[:i]}, split(args[i+1:])...)
}

// copyOf returns a file in memory, because every hook reads the state from the start.
func copyOf(r io.Reader) (*os.File, error) {
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "state")
	_, err = io.Copy(file, r)
	return file, err
}
