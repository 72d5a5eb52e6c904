// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"time"
)

// The files in the pipe directory are named as by the real daemon.
const (
	clientSocket  = "control"            // for clients of any user
	commandSocket = "control_privileged" // for commands
	lockFile      = "control_lock"
	pidFile       = "nvidia-cuda-mps-control.pid"
)

// request is a request of a client: the first one, with its limits, is for admission, the others for memory.
type request struct {
	Threads, Memory string // values of its variables, in the first request
	Device          int
	Bytes           uint64
}

// Answer is the daemon's answer to a request.
type Answer struct {
	Error   string // a name such as CUDA_ERROR_OUT_OF_MEMORY; "" if granted
	Detail  string // why
	Devices []string
	Threads float64 // the client's limit in percent of the multiprocessors
	Limit   uint64  // the client's limit on the device in bytes; 0: none
	Held    uint64  // bytes that it holds on the device
}

// ErrNoDaemon means that no daemon answers in the pipe directory.
var ErrNoDaemon = errors.New("no MPS daemon")

// Client is a process that uses GPUs through a daemon.
type Client struct {
	conn net.Conn
	in   *json.Decoder
	// Hello is the daemon's answer on admission.
	Hello Answer
}

// Connect connects to the daemon with limits in the format of ThreadsVariable and MemoryVariable. It blocks while
// another user's clients have the GPUs. Error: ErrNoDaemon.
func Connect(ctx context.Context, pipe, threads, memory string) (*Client, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(pipe, clientSocket))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDaemon, err)
	}
	c := &Client{conn: conn, in: json.NewDecoder(bufio.NewReader(conn))}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if c.Hello, err = c.ask(request{Threads: threads, Memory: memory}); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

// Allocate requests that many more bytes on the device, numbered as by the daemon.
func (c *Client) Allocate(device int, bytes uint64) (Answer, error) {
	return c.ask(request{Device: device, Bytes: bytes})
}

func (c *Client) ask(r request) (Answer, error) {
	if err := json.NewEncoder(c.conn).Encode(r); err != nil {
		return Answer{}, err
	}
	var a Answer
	err := c.in.Decode(&a)
	if errors.Is(err, io.EOF) {
		err = errors.New("the MPS daemon has gone")
	}
	return a, err
}

// Wait blocks until the daemon has ended.
func (c *Client) Wait() {
	_, _ = io.Copy(io.Discard, c.conn)
}

// closeTimeout is how long Close waits for a daemon that does not answer.
const closeTimeout = time.Second

// Close frees what the client holds. When it returns, others can have that.
func (c *Client) Close() error {
	if half, ok := c.conn.(*net.UnixConn); ok && half.CloseWrite() == nil {
		_ = half.SetReadDeadline(time.Now().Add(closeTimeout))
		_, _ = io.Copy(io.Discard, half)
	}
	return c.conn.Close()
}
