// SPDX-License-Identifier: Apache-2.0

// cdi-hooks runs several CDI hooks of NVIDIA's container toolkit in one process. The container runtime would otherwise
// start NVIDIA's program once for each. The command line is that of nvidia-cdi-hook, with "--" between two hooks:
//
//	cdi-hooks create-symlinks --link libcuda.so.1::/usr/lib/libcuda.so -- update-ldcache --folder /usr/lib
//
// NVIDIA's program fails when a directory of the container refuses a file: a read-only volume, for example. This one
// does what a container needs in another way, and leaves out what it can do without.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/commands"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"
)

func main() {
	// What NVIDIA's hooks say of each link would push the error out of the pod's event.
	logrus.SetLevel(logrus.WarnLevel)
	logrus.SetFormatter(&logrus.TextFormatter{DisableTimestamp: true})
	if err := run(os.Args, os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "cdi-hooks:", err) // last: the event of the pod has the end of what was written
		os.Exit(1)
	}
}

// run runs the hooks in their order, and stops at the first that fails. The container's state is what the runtime
// writes to each hook. As with NVIDIA's program, an unknown hook is no error, because a CDI spec may be newer.
func run(args []string, state io.Reader) error {
	stdin, err := memoryFile("state")
	if err != nil {
		return fmt.Errorf("copy the container's state: %w", err)
	}
	defer stdin.Close()
	if _, err := io.Copy(stdin, state); err != nil {
		return fmt.Errorf("copy the container's state: %w", err)
	}
	os.Stdin = stdin
	c := &container{program: args[0], state: stdin}
	for _, hook := range split(args[1:]) {
		if err := c.do(hook); err != nil {
			return err
		}
	}
	return nil
}

// run runs one hook. What it writes is dropped, but for the last line of a program that fails.
func (c *container) run(hook []string) error {
	if _, err := c.state.Seek(0, io.SeekStart); err != nil {
		return err
	}
	output, err := memoryFile("output")
	if err != nil {
		return err
	}
	defer output.Close()
	defer func(stderr *os.File) { os.Stderr = stderr }(os.Stderr)
	os.Stderr = output
	setName(hook)
	// A command keeps the flags of its last run, so every hook has a new one.
	command := commands.ConfigureCDIHookCommand(logrus.StandardLogger(), &cli.Command{
		// By default the exit status of a program that the hook runs ends this one.
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Writer:         output, // the help, after a wrong flag
	})
	if err := command.Run(context.Background(), slices.Concat([]string{c.program}, hook)); err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) { // the program said why
			err = fmt.Errorf("%w: %s", err, lastLine(output))
		}
		return fmt.Errorf("CDI hook %s: %w", command.Args().First(), err)
	}
	return nil
}

// lastLine returns the last line of the file, without what the hook puts before its cause.
func lastLine(file *os.File) string {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err.Error()
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	line := string(text[bytes.LastIndexByte(text, '\n')+1:])
	if _, cause, found := strings.Cut(line, "Error updating ldcache: "); found {
		return cause
	}
	return line
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

// memoryFile returns a new file in memory.
func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
