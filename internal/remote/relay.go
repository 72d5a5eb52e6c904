// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"io"
	"net"
	"sync"
)

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
