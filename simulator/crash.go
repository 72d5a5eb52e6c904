// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"os"
	"slices"
	"sync"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/steps"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// Crashes observes steps, and kills the process at the step of Prepare or Unprepare for which a crash is ordered. It
// also records the steps of calls if that is on. Otherwise a call costs one read of the state. Orders given during a
// call apply to later calls.
func (n *Node) Crashes() steps.Observer {
	c := &crashes{machine: n.Node, die: die}
	return c.observe
}

type crashes struct {
	machine *node.Node
	die     func()
}

// claimCall is an observed Prepare or Unprepare.
type claimCall struct {
	verb node.Verb

	mu   sync.Mutex
	done []string // the names of its steps
}

type callKey struct{}

func (c *crashes) observe(ctx context.Context, name string, do func(context.Context) error) error {
	call, inside := ctx.Value(callKey{}).(*claimCall)
	switch {
	case !inside && (name == steps.Prepare || name == steps.Unprepare):
		return c.observeCall(ctx, node.Verb(name), do)
	case !inside || call == nil:
		return do(ctx)
	}
	return c.step(ctx, call, name, do)
}

// observeCall observes a call if a crash or recording is ordered. A nested call belongs to the outer one.
func (c *crashes) observeCall(ctx context.Context, verb node.Verb, do func(context.Context) error) error {
	v, err := c.machine.View()
	if err != nil || v.Crash == nil && v.Steps == nil { // NVML reports an unreadable state
		return do(context.WithValue(ctx, callKey{}, (*claimCall)(nil)))
	}
	call := &claimCall{verb: verb}
	if err := do(context.WithValue(ctx, callKey{}, call)); err != nil {
		return err
	}
	if !slices.Contains(call.done, steps.WriteRecord) && !slices.Contains(call.done, steps.DeleteRecord) {
		return nil // it had nothing to do
	}
	if err := c.machine.NoteSteps(verb, call.done); err != nil {
		klog.FromContext(ctx).Error(err, "Steps are not recorded")
	}
	return nil
}

// step runs one step of a call.
func (c *crashes) step(ctx context.Context, call *claimCall, name string, do func(context.Context) error) error {
	call.mu.Lock()
	call.done = append(call.done, name)
	at := len(call.done)
	call.mu.Unlock()
	order, ordered := c.order(call.verb, at)
	if ordered && !order.After {
		if err := c.crash(order); err != nil {
			return err
		}
	}
	if err := do(ctx); err != nil {
		return err
	}
	if ordered && order.After {
		return c.crash(order)
	}
	return nil
}

// order returns the crash ordered for the step, if any.
func (c *crashes) order(verb node.Verb, at int) (order node.Crash, ordered bool) {
	v, err := c.machine.View()
	if err != nil || v.Crash == nil {
		return order, false
	}
	order = *v.Crash
	return order, order.At == at && (order.Verb == verb || order.Verb == "")
}

// crash kills the process, unless another process has taken the order or it is cancelled.
func (c *crashes) crash(order node.Crash) error {
	mine, err := c.machine.TakeCrash(order)
	if mine {
		c.die()
	}
	return err
}

// die kills the process without cleanup. A container's main process has PID 1, which the kernel protects from its own
// SIGKILL: then it exits at once with the exit code of a killed process.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	syscall.Exit(128 + int(syscall.SIGKILL))
}
