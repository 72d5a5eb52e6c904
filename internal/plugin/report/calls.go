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

// callPoll is how often Wait looks whether calls have ended.
const callPoll = 10 * time.Millisecond

// Wait returns when no call has run for the pause, at the deadline, or when stop is closed.
func (c *Calls) Wait(stop <-chan struct{}, deadline time.Time, pause time.Duration) {
	for {
		now := time.Now()
		free := time.Unix(0, c.ended.Load()).Add(pause)
		if c.InFlight() > 0 {
			free = now.Add(max(pause, callPoll)) // at the earliest
		}
		left := min(free.Sub(now), deadline.Sub(now))
		if left <= 0 {
			return
		}
		select {
		case <-stop:
			return
		case <-time.After(left):
		}
	}
}
