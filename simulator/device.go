// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// device implements a handle of a GPU. It identifies the GPU by UUID, so a handle from before the machine was replaced,
// or of a removed GPU, returns ERROR_GPU_IS_LOST. The embedded mock does not know MIG.
type device struct {
	*server.Device
	library *library
}

// identity is what a handle knows of its GPU.
type identity struct {
	uuid, pciBusID string
	minor, index   int
}

// newDevice returns a new handle each time, because a mock remembers every call as long as it lives. All handles of a
// GPU have the functions of the first one: to make them takes longer than all calls of a look at the GPU.
func newDevice(l *library, c node.GPU) *device {
	is := identity{c.UUID, c.PCI.Address.String(), c.Minor, c.Index}
	first, made := l.devices.Load(is)
	if !made {
		first, _ = l.devices.LoadOrStore(is, makeDevice(l, is))
	}
	d := &device{Device: &server.Device{UUID: is.uuid, PciBusID: is.pciBusID, Minor: is.minor, Index: is.index},
		library: l}
	copyFuncs(&d.Device.Device, &first.(*device).Device.Device)
	return d
}

func makeDevice(l *library, is identity) *device {
	d := &device{Device: server.NewDeviceFromConfig(gpus.Config{}, is.index), library: l}
	d.UUID, d.Minor, d.PciBusID = is.uuid, is.minor, is.pciBusID
	d.setIdentityCalls()
	d.setModelCalls()
	d.setUsageCalls()
	d.setConfigCalls()
	d.setTopologyCalls()
	d.setMIGCalls()
	d.setHealthCalls()
	guard(&d.Device.Device, d.gate, d.unlisted)
	return d
}

// current returns the present state of the GPU, or ERROR_GPU_IS_LOST if it is off the bus.
func (d *device) current() (node.GPU, nvml.Return) {
	v, ret := d.library.view()
	if ret != nvml.SUCCESS {
		return node.GPU{}, ret
	}
	return d.in(v)
}

// in returns the state of the GPU in the view, or ERROR_GPU_IS_LOST.
func (d *device) in(v *node.View) (node.GPU, nvml.Return) {
	for i := range v.GPUs { // a GPU is large
		if c := &v.GPUs[i]; c.UUID == d.UUID && !c.State.Unplugged {
			return *c, nvml.SUCCESS
		}
	}
	return node.GPU{}, nvml.ERROR_GPU_IS_LOST
}

// gate applies injected faults to a call. It returns the injected error or the profile's error for the call, otherwise
// SUCCESS.
func (d *device) gate(call string) nvml.Return {
	c, ret := d.current()
	if ret != nvml.SUCCESS {
		return ret
	}
	if ret := d.injectFault(c, call); ret != nvml.SUCCESS {
		return ret
	}
	return nvml.Return(c.Calls.ErrorOnly(call).Number())
}

// injectFault waits for the injected delay of the call and returns its injected error.
func (d *device) injectFault(c node.GPU, call string) nvml.Return {
	if c.Healthy() {
		return nvml.SUCCESS
	}
	delay, e, err := d.library.node.TakeFault(d.UUID, call)
	if err != nil {
		return nvml.ERROR_UNKNOWN
	}
	if ret := d.wait(call, delay); ret != nvml.SUCCESS {
		return ret
	}
	return nvml.Return(e.Number())
}

// A delayed call checks whether the delay still applies, often at first. One that hangs must not cost processor time.
const minWaitPoll, maxWaitPoll = 20 * time.Millisecond, time.Second

// wait waits for the delay, or until the fault is healed, the GPU is off the bus or the machine is replaced.
func (d *device) wait(call string, delay time.Duration) nvml.Return {
	begin := time.Now()
	for {
		waited := time.Since(begin)
		if waited >= delay {
			return nvml.SUCCESS
		}
		time.Sleep(min(delay-waited, max(minWaitPoll, min(waited/8, maxWaitPoll))))
		c, ret := d.current()
		if ret != nvml.SUCCESS {
			return ret
		}
		if !c.Delayed(call) {
			return nvml.SUCCESS
		}
	}
}

// unlisted answers a call that is not simulated.
func (d *device) unlisted(call string) nvml.Return {
	c, ret := d.current()
	if ret != nvml.SUCCESS {
		return ret
	}
	return nvml.Return(c.ErrorOf(call).Number())
}

// value returns a function of the mock that answers from the profile.
func value[T, V any](d *device, pick func(node.GPU) hwprofile.Answer[T], convert func(T) V) func() (V, nvml.Return) {
	return func() (V, nvml.Return) {
		var zero V
		c, ret := d.current()
		if ret != nvml.SUCCESS {
			return zero, ret
		}
		v, e := pick(c).Get()
		if e != "" {
			return zero, nvml.Return(e.Number())
		}
		return convert(v), nvml.SUCCESS
	}
}

// lookup returns a function of the mock that answers from the profile by argument. An argument that the profile does
// not list is invalid.
func lookup[K, A comparable, T, V any](d *device, pick func(node.GPU) hwprofile.Answer[map[K]T], key func(A) K,
	convert func(T) V) func(A) (V, nvml.Return) {
	return func(argument A) (V, nvml.Return) {
		var zero V
		all, ret := value(d, pick, same[map[K]T])()
		if ret != nvml.SUCCESS {
			return zero, ret
		}
		v, ok := all[key(argument)]
		if !ok {
			return zero, nvml.ERROR_INVALID_ARGUMENT
		}
		return convert(v), nvml.SUCCESS
	}
}

func same[T any](v T) T { return v }
