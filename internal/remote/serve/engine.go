// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dialTimeout is the timeout of a connection to the engine, which is on the same machine.
const dialTimeout = 5 * time.Second

// Engine is the server of an engine in a network namespace of its own, where only this process reaches its port.
type Engine struct {
	port  int
	dials chan dial
	ended chan struct{}
	err   error // why the engine ended, once ended is closed
}

type dial struct {
	conn net.Conn
	err  error
	done chan<- dial
}

// Start starts the command in a new network namespace. When ctx ends, the command gets SIGTERM and can finish.
func Start(ctx context.Context, command []string, port int) (*Engine, error) {
	e := &Engine{port: port, dials: make(chan dial), ended: make(chan struct{})}
	cmd := exec.Command(command[0], command[1:]...) //nolint:gosec // the administrator's own command
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go e.run(cmd, started)
	if err := <-started; err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	go func() {
		defer stop()
		e.err = cmd.Wait()
		close(e.ended)
	}()
	return e, nil
}

// run owns the thread in the engine's namespace: it starts the engine, then makes connections until the engine ends.
func (e *Engine) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread() // for ever: the thread ends with this function
	err := isolate()
	if err == nil {
		err = cmd.Start()
	}
	started <- err
	if err != nil {
		return
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(e.port))
	for {
		select {
		case d := <-e.dials:
			d.conn, d.err = net.DialTimeout("tcp", address, dialTimeout) // of an address: on this thread
			d.done <- d
		case <-e.ended:
			return
		}
	}
}

// isolate moves the thread into a network namespace that has only the loopback device. What the thread starts does not
// have the capabilities for that.
func isolate() error {
	err := unix.Unshare(unix.CLONE_NEWNET)
	if err == nil {
		err = loopbackUp()
	}
	for _, capability := range []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN} {
		if err == nil {
			err = unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
		}
	}
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: the container needs the capabilities SYS_ADMIN, NET_ADMIN and SETPCAP", err)
	}
	if err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// Dial connects to the engine.
func (e *Engine) Dial() (net.Conn, error) {
	done := make(chan dial, 1)
	select {
	case e.dials <- dial{done: done}:
		d := <-done
		return d.conn, d.err
	case <-e.ended:
		return nil, errors.New("the engine has ended")
	}
}

// Wait waits until the engine has ended, and returns its error.
func (e *Engine) Wait() error {
	<-e.ended
	return e.err
}
