// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// start is the program's start time. Every progress line prints the time since then.
var start = time.Now()

// screen serializes output, so that lines of parallel programs do not mix.
var screen sync.Mutex

func say(format string, args ...any) {
	screen.Lock()
	defer screen.Unlock()
	fmt.Printf("[%5.1fs] %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
}

// command is a program to run. The zero value of env adds nothing to the environment.
type command struct {
	label string // put before each line that it prints
	args  []string
	env   []string
}

// run streams the program's output. On cancellation it interrupts the program and waits, so that the program can clean
// up.
func (c command) run(ctx context.Context) error {
	reader, writer := io.Pipe()
	var shown sync.WaitGroup
	shown.Go(func() {
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			say("%s: %s", c.label, lines.Text())
		}
		_, _ = io.Copy(io.Discard, reader) // a line too long for the scanner must not stop the program
	})
	cmd := c.prepare(ctx)
	cmd.Stdout, cmd.Stderr = writer, writer
	err := cmd.Run()
	writer.Close()
	shown.Wait()
	return c.wrap(err)
}

// attach runs the program with the stdin, stdout and stderr of this one.
func (c command) attach(ctx context.Context) error {
	cmd := c.prepare(ctx)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return c.wrap(cmd.Run())
}

// output returns the program's stdout. An error includes its stderr.
func (c command) output(ctx context.Context) (string, error) {
	cmd := c.prepare(ctx)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil && stderr.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(text)), c.wrap(err)
}

func (c command) prepare(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 2 * time.Minute // it may have a cluster to end
	return cmd
}

func (c command) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", strings.Join(append([]string{filepath.Base(c.args[0])}, c.args[1:]...), " "), err)
}
