// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// ErrNoAnswer is returned when a GPU does not answer in time, or has not yet answered an earlier call.
var ErrNoAnswer = errors.New("the GPU does not answer")

// errNotAsked is returned when a call has ended before NVML was open for it. That says nothing about a GPU.
var errNotAsked = errors.New("NVML was not open in time")

// calls tracks calls that had not returned when their caller gave up. An NVML call cannot be interrupted, and one that
// hangs occupies a thread. Therefore no other call is made for the same GPU until it has returned.
type calls struct {
	mu      sync.Mutex
	hanging map[gpu.UUID]int
}

// driver stands in place of a GPU for calls that concern none.
const driver gpu.UUID = ""

// hangs reports whether an abandoned call for the GPU has not returned yet.
func (c *calls) hangs(about gpu.UUID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hanging[about] > 0
}

// anyHangs reports whether any abandoned call has not returned yet.
func (c *calls) anyHangs() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.hanging {
		if n > 0 {
			return true
		}
	}
	return false
}

// giveUp records an abandoned call. returned is closed when the call has returned.
func (c *calls) giveUp(about gpu.UUID, returned <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hanging == nil {
		c.hanging = map[gpu.UUID]int{}
	}
	c.hanging[about]++
	go func() {
		<-returned
		c.mu.Lock()
		defer c.mu.Unlock()
		c.hanging[about]--
	}()
}

// grace is how long a call waits after its context has ended, for the more precise error of a call that obeys the
// context.
const grace = 100 * time.Millisecond

// asked is whom a call has asked: a GPU, or driver; nil: nobody yet; gaveUp: it asks nobody any more.
type asked struct{ atomic.Pointer[gpu.UUID] }

var gaveUp = new(gpu.UUID)

// ask is called before NVML is. Error: errNotAsked when the caller has given up.
func (a *asked) ask(whom gpu.UUID) error {
	if was := a.Load(); was == gaveUp || !a.CompareAndSwap(was, &whom) {
		return errNotAsked
	}
	return nil
}

// call runs do with a session, and waits for it until ctx ends. Errors: ErrNoAnswer, errNotAsked.
func call[T any](ctx context.Context, m *Machine, about gpu.UUID, do func(*session) (T, error)) (T, error) {
	return wait(ctx, &m.calls, about, func(a *asked) (none T, err error) {
		s, err := m.acquire(a)
		if err != nil {
			return none, err
		}
		defer m.release(s)
		if err := a.ask(about); err != nil {
			return none, err
		}
		return do(s)
	})
}

// wait runs do, and waits for it until ctx ends. Errors: ErrNoAnswer, errNotAsked.
func wait[T any](ctx context.Context, c *calls, about gpu.UUID, do func(*asked) (T, error)) (T, error) {
	var none T
	if c.hangs(about) {
		return none, fmt.Errorf("an earlier call has not returned: %w", ErrNoAnswer)
	}
	type answer struct {
		value T
		err   error
	}
	var asks asked
	answered, returned := make(chan answer, 1), make(chan struct{})
	go func() {
		defer close(returned)
		value, err := do(&asks)
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-answered:
		return a.value, a.err
	case <-time.After(grace):
		whom, err := asks.Swap(gaveUp), errNotAsked
		if whom != nil {
			c.giveUp(*whom, returned)
		}
		if whom != nil && *whom == about {
			err = ErrNoAnswer
		}
		return none, fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
}
