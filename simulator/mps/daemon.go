// SPDX-License-Identifier: Apache-2.0

// Package mps simulates NVIDIA's Multi-Process Service: the control daemon with its server, the daemon's commands, and
// the client. Behaviour and names follow NVIDIA's documentation; the protocol between client and daemon is our own.
package mps

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// maxClients is the maximum number of clients of a server on Volta and newer.
const maxClients = 48

// config is the configuration of a daemon.
type config struct {
	node      *node.Node
	gpus      []string // UUIDs, also of partitions, in the order in which clients count them
	pipe      string
	defaults  limits
	multiUser bool
	log       *log.Logger
}

// daemon is the control daemon and, in the same process, its server.
type daemon struct {
	config
	commands net.Listener
	clients  net.Listener
	lock     *os.File
	served   []func()      // each releases a GPU that the daemon serves
	done     chan struct{} // closed to stop the daemon

	mu      sync.Mutex
	serving *server
	waiting []*client // in order of arrival
	ended   bool
}

// server serves the clients of one user, or of all users.
type server struct {
	uid     uint32
	wedged  bool // later clients hang
	limits  limits
	clients []*client // in order of admission
}

// client is the connection of a client process.
type client struct {
	conn     net.Conn
	pid      int
	uid      uint32
	name     string
	limits   limits
	held     map[int]uint64 // bytes by device number
	admitted chan struct{}  // closed when a server has admitted or refused it
	refusal  string         // why no server admits it; valid once admitted is closed
}

// run runs the daemon until it ends. It returns an error if the daemon cannot start or an injected fault ends it.
func run(ctx context.Context, c config) error {
	if err := c.awaitStart(ctx); err != nil {
		return err
	}
	d := &daemon{config: c, done: make(chan struct{})}
	if err := d.open(); err != nil {
		return err
	}
	defer d.close()
	d.logf("Starting control daemon using socket %s", filepath.Join(c.pipe, clientSocket))
	go d.accept(d.commands, d.serveCommands)
	go d.accept(d.clients, d.serveClient)
	return d.watch(ctx)
}

// pollPeriod is how often the daemon checks for injected faults.
const pollPeriod = 100 * time.Millisecond

// awaitStart applies injected faults to the start of the daemon.
func (c *config) awaitStart(ctx context.Context) error {
	for began := time.Now(); ; {
		if f, gpu := c.fault(); f.Refusing {
			return fmt.Errorf("simulated fault: daemons on %s refuse to start", gpu)
		} else if time.Since(began) >= f.Slow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollPeriod / 5):
		}
	}
}

// fault returns the injected fault of the daemon and the GPU that has it.
func (c *config) fault() (node.MPSFault, string) {
	v, err := c.node.View()
	if err != nil {
		return node.MPSFault{}, ""
	}
	for _, uuid := range c.gpus {
		if d, err := v.Device(uuid); err == nil && d.State.MPS != nil {
			return *d.State.MPS, d.Name
		}
	}
	return node.MPSFault{}, ""
}

// watch blocks until the daemon must end.
func (d *daemon) watch(ctx context.Context) error {
	for {
		switch f, gpu := d.fault(); {
		case f.Dead:
			return fmt.Errorf("simulated fault: daemons on %s die", gpu)
		case f.Wedged && d.wedge():
			if err := d.node.HealMPS(gpu); err != nil { // it is the server's from now on
				d.logf("%v", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.done:
			return nil
		case <-time.After(pollPeriod):
		}
	}
}

// wedge ends the clients of the server and lets later ones hang. It reports whether there is a server.
func (d *daemon) wedge() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.serving == nil {
		return false
	}
	d.serving.wedged = true
	for _, c := range d.serving.clients {
		_ = c.conn.Close()
	}
	return true
}

// open creates the files in the pipe directory, and removes processes that a killed daemon left on the node.
func (d *daemon) open() (err error) {
	lock, err := os.OpenFile(filepath.Join(d.pipe, lockFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return errors.New("an instance of this daemon is already running")
	}
	d.lock = lock
	for _, uuid := range d.gpus {
		d.served = append(d.served, d.node.ServeMPS(uuid))
	}
	if err := d.publish(); err != nil {
		return err
	}
	if d.commands, err = listen(filepath.Join(d.pipe, commandSocket), 0o600); err != nil {
		return err
	}
	if d.clients, err = listen(filepath.Join(d.pipe, clientSocket), 0o666); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d.pipe, pidFile), fmt.Appendln(nil, os.Getpid()), 0o644)
}

func listen(path string, mode os.FileMode) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // as the real daemon
	return l, os.Chmod(path, mode)
}

// close refuses new clients and ends all existing ones. Its files stay, as those of the real daemon.
func (d *daemon) close() {
	d.mu.Lock()
	d.ended = true
	all := d.waiting
	if d.serving != nil {
		all = slices.Concat(all, d.serving.clients)
	}
	d.serving, d.waiting = nil, nil
	d.mu.Unlock()
	for _, c := range all {
		_ = c.conn.Close()
	}
	if err := d.publish(); err != nil {
		d.logf("%v", err)
	}
	_ = d.commands.Close()
	_ = d.clients.Close()
	for _, release := range d.served {
		release()
	}
	_ = d.lock.Close()
	d.logf("Exit")
}

func (d *daemon) accept(l net.Listener, serve func(net.Conn)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			serve(conn)
		}()
	}
}

// logf writes a line in the format of the real daemon.
func (c *config) logf(format string, args ...any) {
	c.log.Printf("[%s Control %5d] %s", time.Now().Format("2006-01-02 15:04:05.000"), os.Getpid(),
		fmt.Sprintf(format, args...))
}

// serveClient serves a client until its connection ends.
func (d *daemon) serveClient(conn net.Conn) {
	cred, err := peer(conn)
	if err != nil {
		d.logf("%v", err)
		return
	}
	in, out := json.NewDecoder(bufio.NewReader(conn)), json.NewEncoder(conn)
	var hello request
	if err := in.Decode(&hello); err != nil {
		return
	}
	own, err := parseLimits(hello.Threads, hello.Memory)
	if err != nil {
		_ = out.Encode(Answer{Error: "CUDA_ERROR_INVALID_VALUE", Detail: err.Error()})
		return
	}
	c := &client{conn: conn, pid: int(cred.Pid), uid: cred.Uid, name: comm(int(cred.Pid)), limits: own,
		held: map[int]uint64{}, admitted: make(chan struct{})}
	requests := make(chan request)
	go func() {
		defer close(requests)
		for {
			var r request
			if in.Decode(&r) != nil {
				return
			}
			requests <- r
		}
	}()
	d.enqueue(c)
	defer func() {
		d.disconnect(c)
		_ = conn.Close()     // after that: the client may wait until it holds nothing
		for range requests { // the reader ends when the connection is closed
		}
	}()
	select {
	case <-c.admitted:
	case <-requests: // disconnected: a client sends nothing before it is admitted
		return
	}
	if c.refusal != "" {
		_ = out.Encode(Answer{Error: c.refusal})
		return
	}
	d.logf("User %d: client %d connected", c.uid, c.pid)
	_ = out.Encode(Answer{Devices: d.gpus, Threads: c.limits.percent()})
	for r := range requests {
		_ = out.Encode(d.allocate(c, r))
	}
	d.logf("User %d: client %d disconnected", c.uid, c.pid)
}

func peer(conn net.Conn) (*unix.Ucred, error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return cred, errors.Join(err, credErr)
}

// comm returns the name of a process, "-" if it is not visible.
func comm(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "-"
	}
	return strings.TrimSpace(string(name))
}

// enqueue queues the client for admission.
func (d *daemon) enqueue(c *client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = append(d.waiting, c)
	d.schedule()
}

// schedule admits waiting clients in order. There is one server, for one user: other users wait until its clients have
// left.
func (d *daemon) schedule() {
	for len(d.waiting) > 0 && !d.ended {
		c := d.waiting[0]
		uid := c.uid
		if d.multiUser {
			uid = 0
		}
		if d.serving == nil || d.serving.uid != uid && len(d.serving.clients) == 0 {
			d.startServer(uid)
		}
		if d.serving.uid != uid {
			d.logf("User %d: client %d waits for the clients of user %d", c.uid, c.pid, d.serving.uid)
			return
		}
		d.waiting = d.waiting[1:]
		if d.serving.wedged { // the daemon lists it, and it gets no answer
			d.serving.clients = append(d.serving.clients, c)
			continue
		}
		if len(d.serving.clients) >= maxClients {
			c.refusal = "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"
		} else {
			c.limits = c.limits.lower(d.serving.limits, len(d.gpus))
			d.serving.clients = append(d.serving.clients, c)
		}
		close(c.admitted)
	}
}

// startServer starts a server with the current default limits. The caller holds d.mu.
func (d *daemon) startServer(uid uint32) {
	d.logf("Starting new server %d for user %d", os.Getpid(), uid)
	d.serving = &server{uid: uid, limits: d.defaults.clone()}
}

// disconnect frees what the client holds and admits waiting clients.
func (d *daemon) disconnect(c *client) {
	d.mu.Lock()
	is := func(other *client) bool { return other == c }
	d.waiting = slices.DeleteFunc(d.waiting, is)
	if d.serving != nil {
		d.serving.clients = slices.DeleteFunc(d.serving.clients, is)
	}
	d.schedule()
	d.mu.Unlock()
	if err := d.publish(); err != nil {
		d.logf("%v", err)
	}
}

// allocate gives memory to the client, within its limit and the free memory of the device.
func (d *daemon) allocate(c *client, r request) Answer {
	if r.Device < 0 || r.Device >= len(d.gpus) {
		return Answer{Error: "CUDA_ERROR_INVALID_DEVICE", Detail: fmt.Sprintf("device %d: the daemon has %d", r.Device,
			len(d.gpus))}
	}
	if v, err := d.node.View(); err == nil {
		if _, err := v.Device(d.gpus[r.Device]); err != nil {
			return Answer{Error: "CUDA_ERROR_DEVICE_UNAVAILABLE", Detail: err.Error()}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	a := Answer{Threads: c.limits.percent(), Limit: c.limits.memory[r.Device], Held: c.held[r.Device]}
	if limit, ok := c.limits.memory[r.Device]; ok && (r.Bytes > limit || c.held[r.Device] > limit-r.Bytes) {
		a.Error, a.Detail = outOfMemory, "more than the limit of the client"
		return a
	}
	c.held[r.Device] += r.Bytes
	if err := d.publishLocked(); err != nil {
		c.held[r.Device] -= r.Bytes
		a.Error, a.Detail = "CUDA_ERROR_UNKNOWN", err.Error()
		if errors.Is(err, node.ErrNoMemory) {
			a.Error, a.Detail = outOfMemory, "more than the GPU has left"
		}
		return a
	}
	a.Held = c.held[r.Device]
	return a
}

const outOfMemory = "CUDA_ERROR_OUT_OF_MEMORY"

func (d *daemon) publish() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.publishLocked()
}

// publishLocked writes what the clients hold to the node. The caller holds d.mu.
func (d *daemon) publishLocked() error {
	v, err := d.node.View()
	if err != nil {
		return err
	}
	for i, uuid := range d.gpus {
		var processes []node.Process
		if d.serving != nil {
			for _, c := range d.serving.clients {
				if bytes := c.held[i]; bytes > 0 {
					processes = append(processes, node.Process{PID: c.pid, Name: c.name, Memory: bytes,
						Threads: int(c.limits.percent())})
				}
			}
		}
		if _, err := v.Device(uuid); err != nil {
			continue // removed devices have no processes
		}
		if err := d.node.SetProcesses(uuid, processes); err != nil {
			return err
		}
	}
	return nil
}
