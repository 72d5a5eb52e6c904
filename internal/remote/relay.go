// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

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
