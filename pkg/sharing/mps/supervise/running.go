// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// running is a daemon whose process has been started.
type running struct {
	program string
	env     []string
	cmd     *exec.Cmd
	output  tail // not to be read before ended is closed
	ended   chan struct{}
	err     error // how it ended, when ended is closed
}

// longestSocket is the longest path that a Unix socket can have.
const longestSocket = 107

// start starts the process of a daemon in its directories.
func start(dir mps.Dir, root driver, d mps.Daemon) (*running, error) {
	if path := filepath.Join(dir.Pipe(d.ID), "control_privileged"); len(path) > longestSocket {
		return nil, fmt.Errorf("its socket %s would have more than the %d characters that are possible: choose a shorter driver name or kubelet directory",
			path, longestSocket)
	}
	program, err := root.control()
	if err != nil {
		return nil, err
	}
	if err := makeDirs(dir, d.ID); err != nil {
		return nil, err
	}
	libraries, err := root.gather(dir.Libraries(d.ID))
	if err != nil {
		return nil, err
	}
	r := &running{program: program, env: root.environment(dir, d.ID, libraries), ended: make(chan struct{})}
	args := []string{"-f"}
	if d.MultiUser {
		args = append(args, "-multiuser-server")
	}
	r.cmd = exec.Command(program, args...)
	r.cmd.Env = append(r.env[:len(r.env):len(r.env)], "CUDA_VISIBLE_DEVICES="+visible(d))
	r.cmd.Stdout, r.cmd.Stderr = &r.output, &r.output
	r.cmd.WaitDelay = time.Second
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go r.run(started)
	return r, <-started
}

func visible(d mps.Daemon) string {
	var ids []string
	for _, id := range d.GPUs {
		ids = append(ids, string(id))
	}
	return strings.Join(ids, ",")
}

// run starts the process and waits for its end, on one thread: the process gets its signal when the thread ends that started it.
func (r *running) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := r.cmd.Start()
	started <- err
	if err == nil {
		r.err = r.cmd.Wait()
		close(r.ended)
	}
}

// makeDirs makes the directories of a daemon, or empties them of what one before has left. The pipe directory itself stays:
// containers have it mounted.
func makeDirs(dir mps.Dir, id string) error {
	pipe := dir.Pipe(id)
	if err := os.MkdirAll(pipe, 0o755); err != nil {
		return err
	}
	// Clients are of any user.
	if err := os.Chmod(pipe, 0o777|os.ModeSticky); err != nil {
		return err
	}
	left, err := os.ReadDir(pipe)
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := os.RemoveAll(filepath.Join(pipe, e.Name())); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(dir.Log(id)); err != nil {
		return err
	}
	return os.MkdirAll(dir.Log(id), 0o755)
}

// howItEnded says so, with the last it said.
func (r *running) howItEnded() error {
	err := r.err
	if err == nil {
		err = errors.New("exit status 0")
	}
	if text := r.output.lines(); text != "" {
		return fmt.Errorf("it ended: %w: %s", err, text)
	}
	return fmt.Errorf("it ended: %w", err)
}

// How long a daemon may take to answer first, and how often it is asked.
const (
	startTime  = 60 * time.Second
	firstAsk   = 5 * time.Millisecond
	slowestAsk = 200 * time.Millisecond
)

// await returns when the daemon answers.
func (r *running) await(ctx context.Context) error {
	deadline := time.NewTimer(startTime)
	defer deadline.Stop()
	for pause := firstAsk; ; pause = min(2*pause, slowestAsk) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.ended:
			return r.howItEnded()
		case <-deadline.C:
			return fmt.Errorf("it does not answer within %s", startTime)
		case <-time.After(pause):
		}
		if _, err := say(ctx, r.program, r.env, "get_server_list"); err == nil {
			return nil
		}
	}
}

// startServer starts a server before the first client asks for one, so that it has the GPUs, which are for one process: a container
// that leaves MPS aside finds them taken. It is no error if it cannot: the first client starts one, then.
func (r *running) startServer(ctx context.Context) error {
	_, err := say(ctx, r.program, r.env, "start_server -uid 0")
	return err
}

// How long a daemon may take to end: after it has been told to, and after SIGTERM.
const (
	quitTime = 3 * time.Second
	termTime = 2 * time.Second
)

// stop ends the daemon and returns when it has ended.
func (r *running) stop() {
	select {
	case <-r.ended:
		r.signal(syscall.SIGKILL) // servers that it has left behind
		return
	default:
	}
	quit, cancel := context.WithTimeout(context.Background(), quitTime)
	defer cancel()
	// Its clients have ended before it was not wanted any more; what is left gets a second.
	if _, err := say(quit, r.program, r.env, "quit -t 1"); err == nil {
		select {
		case <-r.ended:
			return
		case <-quit.Done():
		}
	}
	r.signal(syscall.SIGTERM)
	select {
	case <-r.ended:
		return
	case <-time.After(termTime):
	}
	r.signal(syscall.SIGKILL)
	<-r.ended
}

// signal goes to the daemon and to its servers.
func (r *running) signal(s syscall.Signal) { _ = syscall.Kill(-r.cmd.Process.Pid, s) }
