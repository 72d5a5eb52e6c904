// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/internal/check"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps/supervise"
)

// The steps with an MPS daemon.
const (
	daemonStep    = "an MPS daemon with limits"
	multiUserStep = "an MPS daemon for several users"
	serverStep    = "an MPS server before the first client"
	clientsStep   = "two MPS clients with limits at once"
	unseenStep    = "an MPS client with a limit of a GPU that it does not see"
	readBackStep  = "limits of MPS, read back"
)

// daemon runs MPS daemons through the driver's supervisor, and stops them. It does not change the compute mode. The
// control program needs no GPU, so on a machine without GPUs only the steps with a server are skipped.
func (e *checker) daemon(ctx context.Context) {
	g, ok := e.unpartitionedGPU()
	why := ""
	switch {
	case e.report.Driver.MPSControl == "":
		why = "the driver root has no nvidia-cuda-mps-control"
	case !ok && len(e.report.GPUs) > 0:
		why = "no unpartitioned GPU supports limits of MPS clients"
	}
	if why != "" {
		for _, step := range []string{daemonStep, multiUserStep, serverStep, clientsStep, readBackStep} {
			e.add(skipped, step, "%s", why)
		}
		return
	}
	if ok {
		e.expect(e.superviseDaemon(ctx, g), daemonStep, "started, limited to half of %s, changed while it runs, and "+
			"ended", g.Name)
	} else {
		e.add(skipped, daemonStep, "there is no GPU")
	}
	if err := e.multiUserDaemon(ctx, g); err != nil {
		e.add(failed, multiUserStep, "%v", err)
	}
}

// unpartitionedGPU returns a GPU without partitions that can limit MPS clients.
func (e *checker) unpartitionedGPU() (check.GPU, bool) {
	for _, g := range e.report.GPUs {
		if g.Error == "" && !g.MIG.Enabled && g.MPSLimits {
			return g, true
		}
	}
	return check.GPU{}, false
}

// timeout limits the start, each change and the end of a daemon.
const timeout = time.Minute

// supervise runs the driver's supervisor while use runs.
func (e *checker) supervise(ctx context.Context, use func(ctx context.Context, dir mps.Dir) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	dir := mps.Dir(filepath.Join(e.dir, "plugin/mps"))
	root := e.driverRoot
	if e.simulateDir != "" {
		root = filepath.Join(e.simulateDir, "root")
	}
	ended := make(chan error, 1)
	go func() {
		ended <- supervise.Run(ctx, supervise.SupervisorConfig{Dir: dir, DriverRoot: root,
			Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	}()
	defer func() {
		cancel() // ends the daemon
		err = errors.Join(err, <-ended)
	}()
	return use(ctx, dir)
}

// request requests the daemon and waits until it is ready.
func request(ctx context.Context, dir mps.Dir, d mps.Daemon) error {
	if err := dir.Request(d); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return dir.Await(waiting, d.ID)
}

// release releases the daemon and waits until it has ended.
func release(dir mps.Dir, id string) error {
	if err := dir.Release(id); err != nil {
		return err
	}
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, err := os.Stat(dir.Pipe(id)); errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("it has not ended within %s", timeout)
}

// daemonOf returns a daemon that limits a client to half of the GPU. Without a GPU, it has one that does not exist.
func daemonOf(g check.GPU) mps.Daemon {
	id := gpu.UUID("GPU-0")
	if uuid, ok := g.Attributes["uuid"]; ok {
		id = gpu.UUID(fmt.Sprint(uuid))
	}
	return mps.Daemon{ID: cmp.Or(g.Name, "gpu"), GPUs: []gpu.UUID{id}, ThreadPercentage: 50,
		Memory: map[gpu.UUID]uint64{id: max(g.Memory/2, 1<<30)}}
}

func (e *checker) superviseDaemon(ctx context.Context, g check.GPU) error {
	return e.supervise(ctx, func(ctx context.Context, dir mps.Dir) error {
		d := daemonOf(g)
		for _, percentage := range []int{50, 30} {
			d.ThreadPercentage = percentage
			if err := request(ctx, dir, d); err != nil {
				return err
			}
		}
		return release(dir, d.ID)
	})
}

// multiUserDaemon runs a daemon for clients of several users and takes the other steps with it. The error is that of
// the daemon.
func (e *checker) multiUserDaemon(ctx context.Context, g check.GPU) error {
	return e.supervise(ctx, func(ctx context.Context, dir mps.Dir) error {
		d := daemonOf(g)
		d.MultiUser = true
		if err := request(ctx, dir, d); err != nil {
			return err
		}
		state, err := dir.State(d.ID)
		if err != nil {
			return err
		}
		if state.SingleUser {
			e.add(verified, multiUserStep, "the control program does not know -multiuser-server, so the daemon was "+
				"started without: clients of different users take turns")
		} else {
			e.add(verified, multiUserStep, "it was started with -multiuser-server")
		}
		c := control{program: e.report.Driver.MPSControl, pipe: dir.Pipe(d.ID), log: dir.Log(d.ID)}
		if len(e.report.GPUs) == 0 {
			e.add(skipped, serverStep, "there is no GPU")
			e.add(skipped, clientsStep, "there is no GPU")
		} else {
			server, err := c.awaitServer(ctx)
			e.expect(err, serverStep, "after start_server -uid 0, server %s still runs a second later", server)
			e.clients(ctx, c, g, e.clientUsers(state))
		}
		values, err := c.readBack(ctx)
		e.expect(err, readBackStep, "set and printed: %s", values)
		return release(dir, d.ID)
	})
}

// control sends commands to a daemon.
type control struct{ program, pipe, log string }

// controlTimeout is how long the daemon may take to answer a command.
const controlTimeout = 10 * time.Second

// ask returns the daemon's answer. It repeats a failed command, because the daemon may refuse one while it talks to
// another program, such as the supervisor: "Cannot send command to MPS control daemon process".
func (c control) ask(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	for {
		cmd := exec.CommandContext(ctx, c.program)
		cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+c.pipe, "CUDA_MPS_LOG_DIRECTORY="+c.log)
		cmd.Stdin = strings.NewReader(command + "\n")
		out, err := cmd.CombinedOutput()
		text := strings.TrimSpace(string(out))
		if err == nil {
			return text, nil
		}
		select {
		case <-ctx.Done():
			return text, fmt.Errorf("%s: %w: %s", command, err, text)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// awaitServer returns the PID of the server that the supervisor has started, when it has lived for a second.
func (c control) awaitServer(ctx context.Context) (string, error) {
	const pause = 50 * time.Millisecond
	server := ""
	for end := time.Now().Add(controlTimeout); server == "" && time.Now().Before(end); time.Sleep(pause) {
		var err error
		if server, err = c.ask(ctx, "get_server_list"); err != nil {
			return "", err
		}
	}
	time.Sleep(time.Second)
	now, err := c.ask(ctx, "get_server_list")
	if err == nil && (server == "" || now != server) {
		err = fmt.Errorf("get_server_list: %q, and a second later %q: %s", server, now, c.lastLines())
	}
	return server, err
}

// lastLines returns the end of the daemon's log.
func (c control) lastLines() string {
	const few = 5
	text, err := os.ReadFile(filepath.Join(c.log, "control.log"))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-few):], "; ")
}

// readBack sets limits and returns what the daemon prints for each. It repeats a command without effect, because the
// daemon may lose one while it talks to another program. The error names the limits that are not printed as the
// supervisor expects.
func (c control) readBack(ctx context.Context) (string, error) {
	var all []string
	var errs []error
	check := func(set, get, value, want string) {
		var got string
		var err error
		tries := 0
		for end := time.Now().Add(controlTimeout); err == nil && got != want && time.Now().Before(end); tries++ {
			if _, err = c.ask(ctx, set+" "+value); err == nil {
				got, err = c.ask(ctx, get)
			}
		}
		if err == nil && got != want {
			err = fmt.Errorf("%s: %q after it was set to %s, want %q", get, got, value, want)
		}
		errs = append(errs, err)
		printed := fmt.Sprintf("%s: %q", value, got)
		if tries > 1 {
			printed += fmt.Sprintf(" (%d tries)", tries)
		}
		all = append(all, printed)
	}
	for _, percentage := range []int{30, 50, 100} {
		check("set_default_active_thread_percentage", "get_default_active_thread_percentage",
			fmt.Sprint(percentage), fmt.Sprintf("%d.0", percentage))
	}
	for _, mebibytes := range []uint64{512, 3000, 5120, 1 << 20} {
		want := fmt.Sprintf("%dM", mebibytes)
		if mebibytes >= 1<<10 {
			want = fmt.Sprintf("%dG", mebibytes>>10) // the rest is not printed
		}
		check("set_default_device_pinned_mem_limit 0", "get_default_device_pinned_mem_limit 0",
			fmt.Sprintf("%dM", mebibytes), want)
	}
	return strings.Join(all, ", "), errors.Join(errs...)
}
