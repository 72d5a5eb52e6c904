// SPDX-License-Identifier: Apache-2.0

package report

import (
	"sync/atomic"
	"time"
)

// Calls counts the calls of the kubelet in flight, from request to response.
type Calls struct {
	running atomic.Int64
	ended   atomic.Int64 // when the last one ended, in nanoseconds since 1970
}

// Begin says that a call begins, and end that it has ended.
func (c *Calls) Begin() (end func()) {
	c.running.Add(1)
	return func() {
		c.ended.Store(time.Now().UnixNano())
		c.running.Add(-1)
	}
}

// InFlight returns the number of calls that run.
func (c *Calls) InFlight() int64 { return c.running.Load() }

// Left returns how long it takes at least until no call has run for the pause; 0: none has.
func (c *Calls) Left(pause time.Duration) time.Duration {
	if c.InFlight() > 0 {
		return pause
	}
	return max(0, time.Until(time.Unix(0, c.ended.Load()).Add(pause)))
}

// Wait returns when no call runs, or at the deadline.
func (c *Calls) Wait(deadline time.Time) {
	for c.InFlight() > 0 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
}
