// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// process is a running process of a daemon.
type process struct {
	program string
	env     []string
	socket  string // for commands; the daemon makes it when it starts
	cmd     *exec.Cmd
	output  tail // only read after ended is closed
	ended   chan struct{}
	err     error // of Wait, set before ended is closed
	// multiUser is whether the daemon was started for clients of different user IDs at the same time.
	multiUser  bool
	serverEnds *servers
	sending    sync.Mutex // see send
}

// maxSocketPath is the maximum length of a Unix socket's path.
const maxSocketPath = 107

// start starts the process of a daemon in its directories.
func start(dir mps.Dir, driver driverroot.Root, d mps.Daemon) (*process, error) {
	socket := filepath.Join(dir.Pipe(d.ID), "control_privileged")
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("its socket %s would have more than the %d characters that are possible: choose a "+
			"shorter driver name or kubelet directory",
			socket, maxSocketPath)
	}
	program, err := findControl(driver)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(mountMemory(dir, d), makeDirs(dir, d.ID)); err != nil {
		return nil, err
	}
	libraries, err := linkLibraries(driver, dir.Libraries(d.ID))
	if err != nil {
		return nil, err
	}
	log, err := openLog(dir.Log(d.ID))
	if err != nil {
		return nil, err
	}
	r := &process{program: program, env: environment(driver, dir, d.ID, libraries), socket: socket,
		ended: make(chan struct{}), multiUser: d.MultiUser, serverEnds: newServers()}
	args := []string{"-f"}
	if d.MultiUser {
		args = append(args, "-multiuser-server")
	}
	r.cmd = withSharedMemory(dir, d, program, args)
	r.cmd.Env = append(r.env[:len(r.env):len(r.env)], "CUDA_VISIBLE_DEVICES="+visible(d))
	output := io.MultiWriter(&r.output, log, r.serverEnds)
	r.cmd.Stdout, r.cmd.Stderr = output, output
	r.cmd.WaitDelay = time.Second
	if r.cmd.SysProcAttr == nil {
		r.cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	r.cmd.SysProcAttr.Setpgid, r.cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	started := make(chan error)
	go func() {
		defer log.Close()
		r.run(started)
	}()
	return r, <-started
}

func visible(d mps.Daemon) string {
	var ids []string
	for _, id := range d.GPUs {
		ids = append(ids, string(id))
	}
	return strings.Join(ids, ",")
}

// run starts the process and waits for its end, on one thread, because Pdeathsig is sent when the thread that started
// the process ends.
func (r *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := r.cmd.Start()
	started <- err
	if err == nil {
		r.err = r.cmd.Wait()
		close(r.ended)
	}
}

// makeDirs creates the directories of a daemon, or empties the pipe directory of an earlier one. That directory itself
// stays, because containers have it mounted. The logs of the earlier one stay, too: they may say why it ended.
func makeDirs(dir mps.Dir, id string) error {
	pipe := dir.Pipe(id)
	if err := os.MkdirAll(pipe, 0o755); err != nil {
		return err
	}
	// Clients run as any user.
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
	return os.MkdirAll(dir.Log(id), 0o755)
}

// errNoMultiUser means that the control program does not know the flag for clients of different users. Drivers before
// R555 take a daemon with an unknown flag for the program that sends commands to it.
var errNoMultiUser = errors.New("the control program does not know -multiuser-server")

// exitError returns how the process ended, with the end of its output.
func (r *process) exitError() error {
	err := r.err
	if err == nil {
		err = errors.New("exit status 0")
	}
	if text := r.output.lastLines(); text != "" {
		return fmt.Errorf("it ended: %w: %s", err, text)
	}
	return fmt.Errorf("it ended: %w", err)
}

// How long a daemon may take to answer first; the first pause between looks for its socket; and the longest one, after
// which it is also asked without a socket.
const (
	startTimeout = 60 * time.Second
	firstPoll    = 2 * time.Millisecond
	longestPoll  = 200 * time.Millisecond
)

// startError returns how the process ended before it answered. Error: errNoMultiUser, only by the first line of output:
// clients can make a daemon print later ones.
func (r *process) startError() error {
	if r.multiUser && strings.Contains(strings.ToLower(r.output.firstLine()), noControlDaemon) {
		return errNoMultiUser
	}
	return r.exitError()
}

// await waits until the daemon answers, and has set its limits. It looks for the socket first, because each question
// starts a program. Error: errNoMultiUser.
func (r *process) await(ctx context.Context, limits mps.Daemon) error {
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	none := mps.Daemon{GPUs: limits.GPUs} // the limits of a new daemon
	limited := len(commandsFor(limits, none, "default_", "")) > 0
	asked := time.Now()
	for pause := firstPoll; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.ended:
			return r.startError()
		case <-deadline.C:
			return fmt.Errorf("it does not answer within %s", startTimeout)
		case <-time.After(pause):
		}
		if _, err := os.Stat(r.socket); err != nil && time.Since(asked) < longestPoll {
			continue
		}
		var err error
		if limited {
			err = r.setLimits(ctx, limits, none)
		} else {
			_, err = r.send(ctx, listServers)
		}
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, errNoAnswer):
			return r.orEnded(ctx, err)
		}
		asked, pause = time.Now(), min(2*pause, longestPoll)
	}
}

// orEnded returns how the process ended, if it does so within a moment: then it is the reason for the error.
func (r *process) orEnded(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
	case <-time.After(longestPoll):
	case <-r.ended:
		return r.startError()
	}
	return err
}

// send sends commands to the daemon: see sendCommands. One call at a time, because a daemon of R555 ignores commands
// while another program that sends some is connected, and says nothing.
func (r *process) send(ctx context.Context, commands ...string) (string, error) {
	r.sending.Lock()
	defer r.sending.Unlock()
	return sendCommands(ctx, r.program, r.env, commands...)
}

// startServer starts a server before the first client connects. The GPUs are in exclusive process mode, so a container
// that bypasses MPS then finds them taken. If it fails, the first client starts the server.
func (r *process) startServer(ctx context.Context) error {
	_, err := r.send(ctx, "start_server -uid 0")
	return err
}

// How long a daemon may take to end: after the command quit, and after SIGTERM.
const (
	quitTimeout = 3 * time.Second
	termTimeout = 2 * time.Second
)

// stop ends the daemon and waits until it has ended.
func (r *process) stop() {
	select {
	case <-r.ended:
		r.signal(syscall.SIGKILL) // servers that it left behind
		return
	default:
	}
	quit, cancel := context.WithTimeout(context.Background(), quitTimeout)
	defer cancel()
	// Its clients ended before the daemon was released; remaining ones get a second.
	if _, err := r.send(quit, "quit -t 1"); err == nil {
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
	case <-time.After(termTimeout):
	}
	r.signal(syscall.SIGKILL)
	<-r.ended
}

// signal signals the daemon and its servers.
func (r *process) signal(s syscall.Signal) { _ = syscall.Kill(-r.cmd.Process.Pid, s) }
