// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpudra/gpu-dra-driver/internal/check"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	simmps "github.com/gpudra/gpu-dra-driver/simulator/mps"
)

// client is a program that has memory of a GPU through an MPS daemon.
type client interface {
	// allocate allocates that many MiB, in addition to what the client has. Error: errOutOfMemory.
	allocate(mebibytes uint64) error
	close() error
}

var errOutOfMemory = errors.New("CUDA_ERROR_OUT_OF_MEMORY")

// nobody is the user of the second client.
const nobody = 65534

// clientUsers returns the users of two clients. The second is another user if the daemon admits several at a time and
// this program may start a process of another user.
func (e *checker) clientUsers(s mps.DaemonState) []int {
	own := os.Geteuid()
	if s.SingleUser || own != 0 || e.simulateDir != "" {
		return []int{own, own}
	}
	return []int{own, nobody}
}

// clients runs clients of the users with limits at once. Each must get memory within its limit and none above it.
func (e *checker) clients(ctx context.Context, c control, g check.GPU, users []int) {
	library := filepath.Join(filepath.Dir(e.report.Driver.Library), "libcuda.so.1")
	if _, err := os.Stat(library); e.simulateDir == "" && err != nil {
		e.add(skipped, clientsStep, "no CUDA library: %v", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	limit := min(g.Memory>>22, 2<<10) // MiB: a quarter of the GPU, or 2 GiB
	memory := fmt.Sprintf("0=%dM", limit)
	start := func(user int, memory string) (client, error) { return startCUDA(ctx, library, c.pipe, memory, user) }
	if e.simulateDir != "" {
		start = func(_ int, memory string) (client, error) { return connectSimulated(ctx, c.pipe, memory) }
	}
	// Clients of other users look up the pipe directory in it.
	err := os.Chmod(e.dir, 0o711)
	if err == nil {
		err = runClients(func(user int) (client, error) { return start(user, memory) }, users, limit)
	}
	e.expect(err, clientsStep, "users %d and %d: each got %d MiB of its limit of %d MiB, and nothing above it",
		users[0], users[1], limit/4, limit)
	if err != nil {
		return
	}
	one, err := start(users[0], memory+fmt.Sprintf(",1=%dM", limit))
	if err == nil {
		err = one.allocate(2 * limit)
		_ = one.close()
	}
	if errors.Is(err, errOutOfMemory) {
		e.add(verified, unseenStep, "it keeps its limit: docs/use/sharing.md is stricter than this driver")
		return
	}
	e.expect(err, unseenStep, "it has no limit, as docs/use/sharing.md says")
}

// runClients starts a client for each user. Each allocates a quarter of the limit, and then tries the whole limit.
func runClients(start func(user int) (client, error), users []int, limit uint64) error {
	var all []client
	defer func() {
		for _, c := range all {
			_ = c.close()
		}
	}()
	for _, user := range users {
		next, err := start(user)
		if err == nil {
			all = append(all, next)
			err = next.allocate(limit / 4)
		}
		if err != nil {
			return fmt.Errorf("client of user %d: %w", user, err)
		}
	}
	for i, c := range all {
		if err := c.allocate(limit); !errors.Is(err, errOutOfMemory) {
			return fmt.Errorf("client of user %d: %d MiB above its limit of %d MiB: got %w, want %w", users[i], limit/4,
				limit, cmp.Or(err, errNone), errOutOfMemory)
		}
	}
	return nil
}

// errNone stands for no error in a message.
var errNone = errors.New("no error")

// limitThreads is the clients' limit of the multiprocessors, in percent.
const limitThreads = "25"

// simulatedClient is a client of a simulated daemon.
type simulatedClient struct{ *simmps.Client }

func connectSimulated(ctx context.Context, pipe, memory string) (client, error) {
	c, err := simmps.Connect(ctx, pipe, limitThreads, memory)
	if err != nil {
		return nil, err
	}
	return simulatedClient{c}, nil
}

func (c simulatedClient) allocate(mebibytes uint64) error {
	a, err := c.Allocate(0, mebibytes<<20)
	switch {
	case err != nil || a.Error == "":
		return err
	case a.Error == errOutOfMemory.Error():
		return errOutOfMemory
	}
	return fmt.Errorf("%s: %s", a.Error, a.Detail)
}

func (c simulatedClient) close() error { return c.Close() }

// cudaProcess is a process of this program that calls the CUDA library.
type cudaProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startCUDA starts a client with limits as the user.
func startCUDA(ctx context.Context, library, pipe, memory string, user int) (client, error) {
	c := &cudaProcess{cmd: exec.CommandContext(ctx, "/proc/self/exe", cudaClient, library)}
	c.cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+pipe, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="+limitThreads,
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+memory)
	c.cmd.Dir, c.cmd.Stderr, c.cmd.WaitDelay = "/", os.Stderr, time.Second
	if user != os.Geteuid() {
		c.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
	}
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	if err := c.answer(); err != nil {
		_ = c.close()
		return nil, err
	}
	return c, nil
}

func (c *cudaProcess) allocate(mebibytes uint64) error {
	if _, err := fmt.Fprintln(c.in, mebibytes); err != nil {
		return err
	}
	return c.answer()
}

// answer reads the line in which the process says how a call has ended.
func (c *cudaProcess) answer() error {
	line, err := c.out.ReadString('\n')
	line = strings.TrimSpace(line)
	switch {
	case err != nil:
		return fmt.Errorf("the client has ended: %w", err)
	case line == answerOK:
		return nil
	case line == errOutOfMemory.Error():
		return errOutOfMemory
	}
	return errors.New(line)
}

func (c *cudaProcess) close() error { return errors.Join(c.in.Close(), c.cmd.Wait()) }

const (
	cudaClient = "cuda-client" // the first argument of a cudaProcess
	answerOK   = "ok"
)

// runCUDAClient opens the first GPU with the CUDA library, and allocates as many MiB as each line of the input says. It
// prints a line for the first and for each allocation.
func runCUDAClient(library string, in io.Reader, out io.Writer) {
	say := func(err error) {
		text := answerOK
		if err != nil {
			text = err.Error()
		}
		fmt.Fprintln(out, text)
	}
	gpu, err := openCUDA(library)
	say(err)
	if err != nil {
		return
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		mebibytes, err := strconv.ParseUint(lines.Text(), 10, 32)
		if err == nil {
			err = gpu.allocate(mebibytes << 20)
		}
		say(err)
	}
}
