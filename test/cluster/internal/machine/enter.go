// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/process"
)

// Streams are the standard streams of a command in a machine.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Run runs the command in all namespaces of the machine with that PID 1 and returns its exit status: as in a shell, 128
// plus the signal's number if a signal ended it. SIGTERM and SIGHUP are forwarded to the command; SIGINT reaches it
// through the terminal.
func Run(init process.Record, command []string, streams Streams) (status int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread is in other namespaces now, and ends with the goroutine.
		runtime.LockOSThread()
		status, err = runHere(init, command, streams)
	}()
	<-done
	return status, err
}

func runHere(init process.Record, command []string, streams Streams) (int, error) {
	fd, err := init.Open()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	// setns into another mount namespace requires a thread with its own root and working folder.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return 0, fmt.Errorf("leave shared root: %w", err)
	}
	if err := unix.Setns(fd, Namespaces); err != nil {
		return 0, fmt.Errorf("enter namespaces of process %d: %w", init.PID, err)
	}
	if err := unix.Chdir("/"); err != nil {
		return 0, fmt.Errorf("change to /: %w", err)
	}
	path, err := lookPath(command[0])
	if err != nil {
		return 0, err
	}
	cmd := &exec.Cmd{
		Path: path, Args: command,
		Env:   append([]string{"TERM=" + os.Getenv("TERM")}, environment...),
		Stdin: streams.In, Stdout: streams.Out, Stderr: streams.Err,
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	stop := forwardSignals(cmd.Process)
	err = cmd.Wait()
	stop()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0, err
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return exit.ExitCode(), nil
}

// forwardSignals forwards signals to the process until it is stopped. The kernel could end the process with this one,
// but Go's check for a living parent fails if the parent is in another PID namespace.
func forwardSignals(p *os.Process) (stop func()) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGTERM, unix.SIGHUP)
	go func() {
		for s := range signals {
			_ = p.Signal(s)
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}

// lookPath searches the program in the machine's file system, on this thread.
func lookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range filepath.SplitList(searchPath) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("find program %s: %w", name, exec.ErrNotFound)
}
