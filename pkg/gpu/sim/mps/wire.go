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
)

// The files in the pipe directory have the names of the real ones.
const (
	clientSocket  = "control"            // for clients of any user
	commandSocket = "control_privileged" // for commands
	lockFile      = "control_lock"
	pidFile       = "nvidia-cuda-mps-control.pid"
)

// request is what a client asks for: first, with its limits, to be let in; then for memory.
type request struct {
	Threads, Memory string // values of its variables, the first time
	Device          int
	Bytes           uint64
}

// Answer is what the daemon says to a request.
type Answer struct {
	Error   string // a name such as CUDA_ERROR_OUT_OF_MEMORY; "" when it was granted
	Detail  string // why
	Devices []string
	Threads float64 // percent of the multiprocessors that the client may use
	Limit   uint64  // bytes that the client may hold of the device; 0: all
	Held    uint64  // bytes that it holds of the device now
}

// ErrNoDaemon means that no daemon answers at the pipe directory.
var ErrNoDaemon = errors.New("no MPS daemon")

// Client is a process that uses GPUs through a daemon.
type Client struct {
	conn net.Conn
	in   *json.Decoder
	// Hello is what the daemon said when it let the client in.
	Hello Answer
}

// Connect becomes a client of the daemon with the limits that are values of ThreadsVariable and MemoryVariable. It waits for as
// long as another user's clients have the GPUs. Error: ErrNoDaemon.
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

// Allocate asks for so much more memory of the device, counted as the daemon counts them.
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

// Wait returns when the daemon has gone.
func (c *Client) Wait() {
	_, _ = io.Copy(io.Discard, c.conn)
}

// Close gives back what the client holds.
func (c *Client) Close() error { return c.conn.Close() }
