// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

// counted counts how often NVML is initialised.
type counted struct {
	nvmllib.Interface
	times *int
}

func (c counted) InitWithFlags(flags uint32) nvmllib.Return {
	*c.times++
	return c.Interface.InitWithFlags(flags)
}

// NVML may count only the GPUs of its start: it is started again when a GPU has come or gone.
func TestHotPlug(t *testing.T) {
	m, opened := machine(t, "workstation")
	times := 0
	n := nvml.New(nvml.MachineConfig{Library: counted{m.NVML(), &times}, Sysfs: opened.Sysfs, Proc: opened.Proc,
		Driver: driverroot.Root{Host: "/host", Here: filepath.Clean(m.DriverRoot())}, Timeout: hangs})
	t.Cleanup(func() { _ = n.Close() })
	var added gpu.Device
	for _, tt := range []struct {
		name          string
		change        func() error
		gpus, started int
		removed       bool // the added GPU
	}{
		{"nothing", func() error { return nil }, 3, 1, false},
		{"nothing again", func() error { return nil }, 3, 1, false},
		{"one is added", func() error { _, err := m.Add("0", simulator.Address{}); return err }, 4, 2, false},
		{"one falls off the bus", func() error { return m.Unplug("1") }, 4, 2, false},
		{"it is removed", func() error { return m.Remove("1") }, 3, 3, true},
	} {
		if err := tt.change(); err != nil {
			t.Fatal(err)
		}
		look, err := n.Discover(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if tt.gpus == 4 {
			added = look.Devices[1]
		}
		if len(look.Devices) != tt.gpus || times != tt.started || n.Removed(added) != tt.removed {
			t.Errorf("%s: got %d GPUs after %d starts, the added one removed: %t; want %d, %d, %t", tt.name,
				len(look.Devices), times, n.Removed(added), tt.gpus, tt.started, tt.removed)
		}
	}
}

// changing changes the machine at each reading, after the first GPU was found and before the others are.
type changing struct {
	*testing.T
	nvmllib.Interface
	change  func() error
	changed chan struct{}
	close   func() // changed, once
}

func (c *changing) DeviceGetHandleByIndex(index int) (nvmllib.Device, nvmllib.Return) {
	if index > 0 {
		<-c.changed
		return c.Interface.DeviceGetHandleByIndex(index)
	}
	d, ret := c.Interface.DeviceGetHandleByIndex(index)
	if err := c.change(); err != nil {
		c.Error(err)
	}
	c.close()
	return d, ret
}

// A GPU is not lost because NVML's indices shift while the GPUs are read. If they always do, the discovery ends, too.
func TestIndicesShiftDuringADiscovery(t *testing.T) {
	const leaves, stays = "gpu-38-00-0", "gpu-3a-00-0"
	add := func(m *simulator.Node, bus uint8) error {
		_, err := m.Add(stays, simulator.Address{PCIAddress: gpu.PCIAddress{Bus: bus}})
		return err
	}
	for _, tt := range []struct {
		name   string
		change func(m *simulator.Node) error
		want   string
	}{
		{"one comes", func(m *simulator.Node) error { return add(m, 1) }, "[01 38 3a a8 aa]"},
		{"one goes, and is still on the bus", func(m *simulator.Node) error { return m.RemoveGPU(leaves) },
			"[3a a8 aa]"},
		{"one comes while another one goes", func(m *simulator.Node) error {
			return errors.Join(m.Remove(leaves), add(m, 0xd0))
		}, "[3a a8 aa d0]"},
	} {
		m, n := following(t, "l40s-x4")
		n.Timeout = hangs
		_, err := n.Discover(t.Context())
		must(t, err)
		c := &changing{T: t, Interface: n.Library, changed: make(chan struct{})}
		c.change = sync.OnceValue(func() error { return tt.change(m) })
		c.close = sync.OnceFunc(func() { close(c.changed) })
		n.Library = c
		must(t, n.Close())
		look, err := n.Discover(t.Context())
		must(t, err)
		var buses []string
		for _, d := range look.Devices {
			if buses = append(buses, fmt.Sprintf("%02x", d.PCI.Bus)); d.Lost {
				buses = append(buses, "lost")
			}
		}
		if got := fmt.Sprint(buses); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
		there := false
		c.change = func() error {
			if there = !there; there {
				return add(m, 2)
			}
			return m.Remove("gpu-02-00-0")
		}
		if _, err := n.Discover(t.Context()); err != nil { // which ends
			t.Errorf("%s, and GPUs always come and go: %v", tt.name, err)
		}
	}
}

// fixed is an NVML that counts only the GPUs of its start.
type fixed struct {
	nvmllib.Interface
	gpus []nvmllib.Device
}

func (f *fixed) InitWithFlags(flags uint32) nvmllib.Return {
	ret := f.Interface.InitWithFlags(flags)
	count, _ := f.Interface.DeviceGetCount()
	f.gpus = make([]nvmllib.Device, count)
	for i := range f.gpus {
		f.gpus[i], _ = f.Interface.DeviceGetHandleByIndex(i)
	}
	return ret
}

func (f *fixed) DeviceGetCount() (int, nvmllib.Return) { return len(f.gpus), nvmllib.SUCCESS }

func (f *fixed) DeviceGetHandleByIndex(index int) (nvmllib.Device, nvmllib.Return) {
	return f.gpus[index], nvmllib.SUCCESS
}

// The same discovery finds a GPU that comes during it.
func TestGPUThatComesDuringADiscovery(t *testing.T) {
	m, n := following(t, "l40s-x4")
	n.Timeout = hangs
	c := &changing{T: t, Interface: &fixed{Interface: n.Library}, changed: make(chan struct{})}
	c.change = sync.OnceValue(func() error {
		_, err := m.Add("0", simulator.Address{})
		return err
	})
	c.close = sync.OnceFunc(func() { close(c.changed) })
	n.Library = c
	look, err := n.Discover(t.Context())
	if err != nil || len(look.Devices) != 5 {
		t.Errorf("got %d GPUs, error %v, want 5", len(look.Devices), err)
	}
}

// The wait for events ends for the new session in which NVML counts a GPU that has come.
func TestGPUThatComesWhileEventsAreAwaited(t *testing.T) {
	t.Parallel()
	w := watch(t, "l40s-x4", func(n *nvml.Machine) { n.Library = &fixed{Interface: n.Library} })
	_, err := w.machine.Add("0", simulator.Address{})
	must(t, err)
	w.eventually("5 GPUs", func() bool { return len(w.look().Devices) == 5 }, new(string))
}
