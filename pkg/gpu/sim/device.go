// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
)

// device is what a handle of a GPU stands on. It knows the GPU by its UUID, so a handle from before the machine was swapped, or
// of a GPU that has been removed, answers ERROR_GPU_IS_LOST. What it inherits from the mock knows nothing of MIG.
type device struct {
	*server.Device
	library *library
}

// newDevice makes a handle. It is a new one each time, because a mock remembers every call for as long as it lives.
func newDevice(l *library, c node.Card) *device {
	d := &device{Device: server.NewDeviceFromConfig(gpus.Config{}, c.Index), library: l}
	d.UUID, d.Minor, d.PciBusID = c.UUID, c.Minor, c.PCI.Address.String()
	d.identify()
	d.describe()
	d.measure()
	d.configure()
	d.connect()
	d.divide()
	guard(&d.Device.Device, d.gate, d.unlisted)
	return d
}

// card is the GPU as it is now. Of a GPU that is off the bus NVML says nothing but that.
func (d *device) card() (node.Card, nvml.Return) {
	v, ret := d.library.view()
	if ret != nvml.SUCCESS {
		return node.Card{}, ret
	}
	for _, c := range v.GPUs {
		if c.UUID == d.UUID && !c.State.Unplugged {
			return c, nvml.SUCCESS
		}
	}
	return node.Card{}, nvml.ERROR_GPU_IS_LOST
}

// gate lets a call take the time that was ordered for it, and returns the error that it has been made to answer, or that the profile
// has for it in place of all values; SUCCESS if none.
func (d *device) gate(call string) nvml.Return {
	c, ret := d.card()
	if ret != nvml.SUCCESS {
		return ret
	}
	if ret := d.befall(c, call); ret != nvml.SUCCESS {
		return ret
	}
	return nvml.Return(c.Calls.ErrorOnly(call).Number())
}

// befall lets the call take the time that was ordered for it, and returns the error that was.
func (d *device) befall(c node.Card, call string) nvml.Return {
	if c.Healthy() {
		return nvml.SUCCESS
	}
	delay, e, err := d.library.node.Befall(d.UUID, call)
	if err != nil {
		return nvml.ERROR_UNKNOWN
	}
	if ret := d.linger(call, delay); ret != nvml.SUCCESS {
		return ret
	}
	return nvml.Return(e.Number())
}

// lingerPeriod is how often a call that takes long looks whether it still should.
const lingerPeriod = 20 * time.Millisecond

// linger waits so long, or until somebody heals the GPU, takes it off the bus or swaps the machine.
func (d *device) linger(call string, delay time.Duration) nvml.Return {
	for end := time.Now().Add(delay); time.Until(end) > 0; {
		time.Sleep(min(time.Until(end), lingerPeriod))
		c, ret := d.card()
		if ret != nvml.SUCCESS {
			return ret
		}
		if !c.Delayed(call) {
			break
		}
	}
	return nvml.SUCCESS
}

// unlisted is what a call answers that nobody has thought of.
func (d *device) unlisted(call string) nvml.Return {
	c, ret := d.card()
	if ret != nvml.SUCCESS {
		return ret
	}
	return nvml.Return(c.ErrorOf(call).Number())
}

// value makes a function of the mock from an answer of the profile.
func value[T, V any](d *device, pick func(node.Card) node.Answer[T], convert func(T) V) func() (V, nvml.Return) {
	return func() (V, nvml.Return) {
		var zero V
		c, ret := d.card()
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

// lookup makes a function of the mock from an answer of the profile that depends on an argument. An argument that the profile
// does not mention is an invalid one.
func lookup[K, A comparable, T, V any](d *device, pick func(node.Card) node.Answer[map[K]T], key func(A) K, convert func(T) V) func(A) (V, nvml.Return) {
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
