// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim"
)

var update = flag.Bool("update", false, "write the golden files anew")

// machine is a simulated machine and the driver's view of it. A machine with device nodes needs root.
func machine(t *testing.T, profile string) (*sim.Node, *nvml.Node) {
	t.Helper()
	p, err := sim.BuiltIn(profile)
	if err != nil {
		t.Fatal(err)
	}
	m, err := sim.Open(t.TempDir(), p)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	if err := m.LayOut(sim.Programs{NvidiaSMI: os.Args[0]}); err != nil {
		t.Fatal(err)
	}
	node, err := nvml.Open(nvml.Config{
		Library:  m.NVML(),
		Sysfs:    filepath.Join(m.DriverRoot(), "sys"),
		Driver:   nvml.DriverRoot{Host: "/host", Here: m.DriverRoot()},
		HookPath: "/plugins/nvidia-cdi-hook",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	return m, node
}

// Every fact of every GPU, as text with the UUIDs numbered.
func TestDiscover(t *testing.T) {
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			_, node := machine(t, profile)
			devices, broken, err := node.Discover()
			if err != nil || len(broken) > 0 {
				t.Fatal(err, broken)
			}
			var lines []string
			uuids := map[string]string{}
			for i, d := range devices {
				uuids[string(d.UUID)] = fmt.Sprintf("<uuid %d>", i)
			}
			for _, d := range devices {
				line := fmt.Sprintf("%+v", d)
				for uuid, name := range uuids {
					line = strings.ReplaceAll(line, uuid, name)
				}
				lines = append(lines, line)
			}
			got := strings.Join(lines, "\n") + "\n"
			file := filepath.Join("testdata", profile+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, string(want)); diff != "" {
				t.Errorf("got - want + (go test -update writes it anew)\n%s", diff)
			}
		})
	}
}

// One GPU that does not answer is reported and left out; the others stay.
func TestDiscoverWithABrokenGPU(t *testing.T) {
	for _, row := range []struct{ call, want string }{
		{"GetUUID", "get UUID"},
		{"GetPciInfo", "get PCI address"},
		{"GetMemoryInfo", "get memory"},
		{"GetName", "get product name"},
		{"GetCudaComputeCapability", "get compute capability"},
		{"GetMinorNumber", "get minor number"},
		{"GetMigMode", "get MIG mode"},
		{"all", "GPU 0: "},
	} {
		t.Run(row.call, func(t *testing.T) {
			m, node := machine(t, "t4-x2")
			if err := m.Fail("0", row.call, "ERROR_GPU_IS_LOST"); err != nil {
				t.Fatal(err)
			}
			devices, broken, err := node.Discover()
			if err != nil {
				t.Fatal(err)
			}
			if len(devices) != 1 || devices[0].Index != 1 {
				t.Errorf("got %v, want GPU 1 alone", devices)
			}
			if len(broken) != 1 || !strings.Contains(broken[0].Error(), row.want) {
				t.Errorf("got %v, want one error with %q", broken, row.want)
			}
			if err := m.Heal("0"); err != nil {
				t.Fatal(err)
			}
			if devices, broken, err := node.Discover(); len(devices) != 2 || len(broken) > 0 || err != nil {
				t.Errorf("after it was healed: %d GPUs, %v, %v", len(devices), broken, err)
			}
		})
	}
}

// What a GPU does not support is not an error: the fact is left at its default.
func TestDiscoverWithoutOptionalAnswers(t *testing.T) {
	m, node := machine(t, "t4-x2")
	for _, call := range []string{"GetGpuFabricInfo", "GetNvLinkState", "GetNumGpuCores", "GetMaxClockInfo", "GetMemoryBusWidth"} {
		if err := m.Fail("0", call, "ERROR_NOT_SUPPORTED"); err != nil {
			t.Fatal(err)
		}
	}
	devices, broken, err := node.Discover()
	if err != nil || len(broken) > 0 {
		t.Fatal(err, broken)
	}
	p := devices[0].Product
	got := fmt.Sprint(p.Multiprocessors, p.MemoryBandwidth, p.PeakCompute, devices[0].Topology.NVLinkDomain == string(devices[0].UUID))
	if want := "0 0 65 true"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestDriverRootWithoutADriver(t *testing.T) {
	root := nvml.DriverRoot{Host: "/run/nvidia/driver", Here: t.TempDir()}
	_, err := root.Library()
	if !errors.Is(err, nvml.ErrNoDriver) || !strings.Contains(err.Error(), "below /run/nvidia/driver") {
		t.Errorf("got %v", err)
	}
}
