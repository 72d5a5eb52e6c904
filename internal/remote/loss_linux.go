// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lostAfter is how long data may stay unacknowledged until a connection between node and server is lost, such as after
// a cut of the network. The kernel would wait for a quarter of an hour, and with it a call of CUDA.
const lostAfter = time.Minute

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
