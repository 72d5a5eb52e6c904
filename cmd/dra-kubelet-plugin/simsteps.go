// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"sync"
	"syscall"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin"
	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// withSteps lets the simulated machine in dir see the side effects of Prepare and Unprepare as steps, so that simctl can order a
// crash at any of them. As long as nothing is ordered or recorded, a step costs one look at the state of the machine. What is ordered
// or recorded while a call is under way is for the calls after it.
func withSteps(machine *sim.Node, c *plugin.Config) {
	s := &steps{machine: machine.Node, calls: map[string]*call{}, die: die}
	machine.OnChange(s.change)
	c.Specs = steppedSpecs{c.Specs, s}
	c.Records = steppedRecords{c.Records, s}
	c.Daemons = steppedDaemons{c.Daemons, s}
	discover := c.Discover
	c.Discover = func() (claims.Node, []error, error) {
		found, broken, err := discover()
		if found.Hardware != nil {
			found.Hardware = steppedHardware{found.Hardware, s}
		}
		return found, broken, err
	}
}

// change is step for a call to NVML that changes how a GPU is partitioned.
func (s *steps) change(call string, do func() nvmllib.Return) (ret nvmllib.Return) {
	err := s.stepOf(call, func() error {
		if ret = do(); ret != nvmllib.SUCCESS {
			return ret
		}
		return nil
	})
	if err != nil && ret == nvmllib.SUCCESS {
		return nvmllib.ERROR_UNKNOWN
	}
	return ret
}

// steps counts the steps of every call that is under way, and carries out orders.
type steps struct {
	machine *node.Node
	die     func()

	mu    sync.Mutex
	calls map[string]*call // by goroutine, from the first Lock to the last unlock
}

// call is a Prepare or Unprepare.
type call struct {
	verb node.Verb // of its last step
	done []string  // the names of its steps
	last bool      // it has come to its last step, and that went well
	more bool      // it lets go of its locks and goes on when it has them again

	unwatched bool // nothing was ordered or recorded when it began, so its steps were not counted
}

// step does one step of the call that this goroutine is in.
func (s *steps) step(verb node.Verb, name string, do func() error) error {
	if !s.watched() {
		return do()
	}
	c := s.current()
	if c.unwatched {
		return do()
	}
	c.verb, c.last = verb, false
	c.done = append(c.done, name)
	order, ordered := s.order(verb, len(c.done))
	if ordered && !order.After {
		if err := s.obey(order); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	if ordered && order.After {
		return s.obey(order)
	}
	return nil
}

// stepOf is step for one that is of Prepare and of Unprepare: the call knows which it is by its step before.
func (s *steps) stepOf(name string, do func() error) error {
	if !s.watched() {
		return do()
	}
	verb := s.current().verb
	if verb == "" {
		verb = node.Prepare
	}
	return s.step(verb, name, do)
}

// finish is step for the last one of a call.
func (s *steps) finish(verb node.Verb, name string, do func() error) error {
	if err := s.step(verb, name, do); err != nil {
		return err
	}
	if s.watched() {
		s.current().last = true
	}
	return nil
}

// watched says whether anybody counts steps. A machine whose state cannot be read is reported by NVML.
func (s *steps) watched() bool {
	v, err := s.machine.View()
	return err == nil && (v.Crash != nil || v.Steps != nil)
}

// order is the order for that step, if there is one.
func (s *steps) order(verb node.Verb, at int) (order node.Crash, ordered bool) {
	v, err := s.machine.View()
	if err != nil || v.Crash == nil {
		return order, false // a machine whose state cannot be read is reported by NVML
	}
	order = *v.Crash
	return order, order.At == at && (order.Verb == verb || order.Verb == "")
}

// obey ends the process, unless another has carried out the order or somebody has taken it back.
func (s *steps) obey(order node.Crash) error {
	mine, err := s.machine.TakeCrash(order)
	if mine {
		s.die()
	}
	return err
}

// current is the call that this goroutine is in. A step outside of any is a call of its own: to Unprepare a claim that has no
// record takes no lock.
func (s *steps) current() *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.calls[routine()]; ok {
		return c
	}
	return &call{}
}

// begin begins a call; end ends it and notes its steps.
func (s *steps) begin(ctx context.Context) (end func()) {
	id := routine()
	s.mu.Lock()
	defer s.mu.Unlock()
	c, known := s.calls[id]
	switch {
	case known && !c.more:
		return func() {} // nested
	case !known:
		c = &call{unwatched: !s.watched()}
		s.calls[id] = c
	}
	c.more = false
	return func() {
		s.mu.Lock()
		if !c.more {
			delete(s.calls, id)
		}
		s.mu.Unlock()
		if !c.last || c.unwatched {
			return
		}
		if err := s.machine.NoteSteps(c.verb, c.done); err != nil {
			klog.FromContext(ctx).Error(err, "Steps are not recorded")
		}
	}
}

// routine is the number of this goroutine. Prepare and Unprepare stay in one from the first step to the last, and the steps
// themselves are not told which call they belong to.
func routine() string {
	var text [32]byte
	fields := bytes.Fields(text[:runtime.Stack(text[:], false)]) // "goroutine 18 [running]: …"
	return string(fields[1])
}

// die ends the process without a chance to clean up. In a container of its own it has the number 1, which the kernel protects
// from its own SIGKILL: then it leaves all at once, with the exit code of one that was killed.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	syscall.Exit(128 + int(syscall.SIGKILL))
}

type steppedRecords struct {
	claims.Records
	*steps
}

func (r steppedRecords) Lock(ctx context.Context, devices []string) (func(), error) {
	unlock, err := r.Records.Lock(ctx, devices)
	if err != nil {
		return nil, err
	}
	end := r.begin(ctx)
	return func() {
		unlock()
		end() // when nobody waits for it
	}, nil
}

func (r steppedRecords) Holders(devices []string, except types.UID) (found []sharing.Holder, err error) {
	err = r.stepOf("Holders", func() error { found, err = r.Records.Holders(devices, except); return err })
	return found, err
}

func (r steppedRecords) Put(rec checkpoint.Record) error {
	put := func() error { return r.Records.Put(rec) }
	switch rec.Phase {
	case checkpoint.Prepared:
		return r.finish(node.Prepare, "Put", put)
	case checkpoint.Releasing:
		return r.step(node.Unprepare, "Put", put)
	}
	if r.watched() {
		defer func() { r.current().more = true }()
	}
	return r.step(node.Prepare, "Put", put)
}

func (r steppedRecords) Delete(rec checkpoint.Record) error {
	return r.finish(node.Unprepare, "Delete", func() error { return r.Records.Delete(rec) })
}

type steppedSpecs struct {
	plugin.Specs
	*steps
}

func (s steppedSpecs) WriteDriver(common gpu.Access) (name string, err error) {
	err = s.step(node.Prepare, "WriteDriver", func() error { name, err = s.Specs.WriteDriver(common); return err })
	return name, err
}

func (s steppedSpecs) WriteClaim(claim types.UID, devices []cdi.Device) (names []string, err error) {
	err = s.step(node.Prepare, "WriteClaim", func() error { names, err = s.Specs.WriteClaim(claim, devices); return err })
	return names, err
}

func (s steppedSpecs) RemoveClaim(claim types.UID) error {
	return s.step(node.Unprepare, "RemoveClaim", func() error { return s.Specs.RemoveClaim(claim) })
}

type steppedHardware struct {
	claims.Hardware
	*steps
}

func (h steppedHardware) DriverAccess() (access gpu.Access, err error) {
	err = h.step(node.Prepare, "DriverAccess", func() error { access, err = h.Hardware.DriverAccess(); return err })
	return access, err
}

func (h steppedHardware) Access(d gpu.Device) (access gpu.Access, err error) {
	err = h.step(node.Prepare, "Access", func() error { access, err = h.Hardware.Access(d); return err })
	return access, err
}

// Configure may run in goroutines of its own, for several GPUs at once: then its steps are calls of their own.
func (h steppedHardware) Configure(ctx context.Context, id gpu.UUID, settings, before gpu.Settings) error {
	return h.stepOf("Configure", func() error { return h.Hardware.Configure(ctx, id, settings, before) })
}

type steppedDaemons struct {
	plugin.Daemons
	*steps
}

func (d steppedDaemons) Want(daemon mps.Daemon) error {
	return d.stepOf("Want", func() error { return d.Daemons.Want(daemon) })
}

func (d steppedDaemons) Unwant(id string) error {
	return d.stepOf("Unwant", func() error { return d.Daemons.Unwant(id) })
}
