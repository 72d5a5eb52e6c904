// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// What a GPU does not tell is unknown, and it can be had all the same: only what identifies it, places it and finds its
// device node must be answered.
func TestUnansweredCalls(t *testing.T) {
	zero := map[string]func(d gpu.Device) bool{
		"GetName":                  func(d gpu.Device) bool { return d.Product.Name == "" },
		"GetBrand":                 func(d gpu.Device) bool { return d.Product.Brand == "" },
		"GetArchitecture":          func(d gpu.Device) bool { return d.Product.Architecture == "" },
		"GetCudaComputeCapability": func(d gpu.Device) bool { return d.Product.ComputeCapability == gpu.Version{} },
		// the largest partition tells
		"GetNumGpuCores":    func(d gpu.Device) bool { return d.Product.Multiprocessors == 132 },
		"GetMemoryBusWidth": func(d gpu.Device) bool { return d.Product.MemoryBandwidth == 0 },
		"GetMigMode":        func(d gpu.Device) bool { return !d.MIG.Capable },
		"GetGpuInstanceProfileInfo": func(d gpu.Device) bool {
			return d.MIG.Capable && len(d.MIG.Profiles) == 0
		},
		"GetAddressingMode": func(d gpu.Device) bool { return d.Addresses == "" },
		"GetNvLinkState":    func(d gpu.Device) bool { return d.Topology.NVLinkDomain == string(d.UUID) },
		"GetGpuFabricInfo":  func(d gpu.Device) bool { return d.Topology.FabricDomain == string(d.UUID) },
	}
	for call, unknown := range zero {
		for _, answer := range []hwprofile.Error{"ERROR_NOT_SUPPORTED", "ERROR_UNKNOWN", "ERROR_NO_PERMISSION"} {
			t.Run(call+" "+string(answer), func(t *testing.T) {
				m, n := machine(t, "dgx-h100")
				before := first(t, n)
				if err := m.Fail("0", call, answer); err != nil {
					t.Fatal(err)
				}
				d := fresh(t, n)
				if d.Lost || d.UUID != before.UUID || d.Memory != before.Memory {
					t.Fatalf("got %+v", d)
				}
				if !unknown(d) {
					t.Errorf("got %+v", d)
				}
				if _, err := toolkitOf(n).Access(t.Context(), d); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A GPU that uses the memory of the host has none that anybody could tell.
func TestMemoryOfTheHost(t *testing.T) {
	m, n := machine(t, "t4-x2")
	if err := m.Fail("0", "GetMemoryInfo", "ERROR_NOT_SUPPORTED"); err != nil {
		t.Fatal(err)
	}
	if d := first(t, n); d.Lost || d.Memory != 0 {
		t.Errorf("got %+v, want a GPU with no known memory", d)
	}
}

// Where NVML does not tell the minor number, the driver's directory in /proc does.
func TestMinorNumberFromProc(t *testing.T) {
	m, n := machine(t, "t4-x2")
	before := first(t, n)
	if err := m.Fail("0", "GetMinorNumber", "ERROR_NOT_SUPPORTED"); err != nil {
		t.Fatal(err)
	}
	if d := fresh(t, n); !d.Lost {
		t.Errorf("nobody tells: got %+v, want it lost", d)
	}
	dir := filepath.Join(n.Proc, "driver/nvidia/gpus", before.PCI.String())
	const text = "Model: \t\t Tesla T4\nIRQ:   \t\t 33\nDevice Minor: \t 0\n"
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "information"), []byte(text),
		0o644)); err != nil {
		t.Fatal(err)
	}
	if d := fresh(t, n); d.Lost || d.Minor != before.Minor {
		t.Errorf("got %+v, want minor %d", d, before.Minor)
	}
}

// fresh is the first GPU, asked for everything.
func fresh(t *testing.T, n *nvml.Machine) gpu.Device {
	t.Helper()
	again, err := nvml.Open(n.MachineConfig)
	if err != nil {
		t.Fatal(err)
	}
	look, err := again.Discover(t.Context())
	devices := look.Devices
	if err != nil || len(devices) == 0 {
		t.Fatal(devices, err)
	}
	return devices[0]
}

// A guest of a vGPU host may not ask for much. What it has can be had, and what was never set can be set back.
func TestVGPUGuest(t *testing.T) {
	m, n := machine(t, "l40s-x4")
	for _, call := range []string{"GetMigMode", "GetNumGpuCores", "GetMaxClockInfo", "GetMemoryBusWidth",
		"GetNvLinkState", "GetGpuFabricInfo",
		"GetComputeMode", "SetComputeMode", "GetSerial", "GetProcessUtilization"} {
		if err := m.Fail("0", call, "ERROR_NOT_SUPPORTED"); err != nil {
			t.Fatal(err)
		}
	}
	d := fresh(t, n)
	if d.Lost || d.MIG.Capable || d.Product.Name == "" || d.Memory == 0 {
		t.Fatalf("got %+v", d)
	}
	if _, err := toolkitOf(n).Access(t.Context(), d); err != nil {
		t.Error(err)
	}
	if err := n.Set(t.Context(), d.UUID, gpu.DesiredState{Settings: &gpu.Settings{}}); err != nil {
		t.Error(err)
	}
	if err := n.Set(t.Context(), d.UUID, gpu.DesiredState{MIG: gpu.MIGOff}); err != nil {
		t.Error(err)
	}
}
