// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lostAfter is how long data may stay unacknowledged until a connection between node and server is lost, such as after
// a cut of the network. The kernel would wait for a quarter of an hour, and with it a call of CUDA.
const lostAfter = time.Minute

// Keepalive finds an idle connection between node and server lost after half a minute.
var Keepalive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// acceptPause is the pause after a connection that could not be accepted.
const acceptPause = 100 * time.Millisecond

// Accept handles each connection to l until ctx ends, and then closes l. An error such as too many open files is passed
// to failed, and ends nothing.
func Accept(ctx context.Context, l net.Listener, failed func(error), handle func(net.Conn)) {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failed(err)
			time.Sleep(acceptPause)
		default:
			go handle(conn)
		}
	}
}

// LimitLoss is the Control of sockets between node and server, for connections with data on the way.
func LimitLoss(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(lostAfter.Milliseconds()))
	})
	if err == nil {
		err = failed
	}
	return err
}

// Relay copies both ways until one side ends, then closes both.
func Relay(a, b net.Conn) {
	var copies sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		copies.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // an engine that loses its connection says so itself
			_, _ = a.Close(), b.Close()
		})
	}
	copies.Wait()
}
