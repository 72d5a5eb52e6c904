// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"path/filepath"
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
