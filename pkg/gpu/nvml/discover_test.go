// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/toolkit"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

var update = flag.Bool("update", false, "write the golden files anew")

// machine is a simulated machine and the driver's view of it. A machine with device nodes needs root.
func machine(t *testing.T, profile string) (*simulator.Node, *nvml.Machine) {
	t.Helper()
	p, err := simulator.BuiltIn(profile)
	if err != nil {
		t.Fatal(err)
	}
	return machineOf(t, p)
}

// toolkitOf asks the machine what containers need.
func toolkitOf(n *nvml.Machine) *toolkit.Toolkit {
	return &toolkit.Toolkit{NVML: n, Driver: n.Driver, Proc: n.Proc}
}

func machineOf(t *testing.T, p simulator.Profile) (*simulator.Node, *nvml.Machine) {
	t.Helper()
	m, err := simulator.Open(tmpfs.Dir(t), p)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	if err := m.LayOut(simulator.Programs{NvidiaSMI: os.DevNull}); err != nil { // a test that runs it lays out another
		t.Fatal(err)
	}
	node, err := nvml.Open(nvml.MachineConfig{
		Library: m.NVML(),
		Sysfs:   filepath.Join(m.DriverRoot(), "sys"),
		Proc:    filepath.Join(m.DriverRoot(), "proc"),
		Driver:  driverroot.Root{Host: "/host", Here: m.DriverRoot()},
		Timeout: hangs,
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
	for _, profile := range simulator.Profiles() {
		t.Run(profile, func(t *testing.T) {
			_, node := machine(t, profile)
			look, err := node.Discover(t.Context())
			devices, broken := look.Devices, look.Broken
			if err != nil || len(broken) > 0 {
				t.Fatal(err, broken)
			}
			var lines []string
			uuids := map[string]string{}
			for i, d := range devices {
				uuids[string(d.UUID)] = fmt.Sprintf("<uuid %d>", i)
			}
			for _, d := range devices {
				profiles := d.MIG.Profiles
				d.MIG.Profiles = nil // below, once
				line := fmt.Sprintf("%+v", d)
				for uuid, name := range uuids {
					line = strings.ReplaceAll(line, uuid, name)
				}
				lines = append(lines, line)
				for _, p := range profiles {
					if line := fmt.Sprintf("  %+v", p); !slices.Contains(lines, line) {
						lines = append(lines, line)
					}
				}
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

// One GPU that does not answer is reported and counts as lost; the others stay.
func TestDiscoverWithBrokenGPU(t *testing.T) {
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
			look, err := node.Discover(t.Context())
			devices, broken := look.Devices, look.Broken
			if err != nil {
				t.Fatal(err)
			}
			if len(devices) != 2 || !devices[0].Lost || devices[0].Name != "gpu-3b-00-0" || devices[1].Lost {
				t.Errorf("got %v, want GPU 0 as lost, at its place", devices)
			}
			if !devices[0].Gone {
				t.Error("NVML has said that it is lost, but it counts as silent")
			}
			if len(broken) != 1 || !strings.Contains(broken[0].Error(), row.want) {
				t.Errorf("got %v, want one error with %q", broken, row.want)
			}
			if err := m.Heal("0"); err != nil {
				t.Fatal(err)
			}
			if look, err := node.Discover(t.Context()); len(look.Devices) != 2 || len(look.Broken) > 0 || err != nil {
				t.Errorf("after it was healed: %d GPUs, %v, %v", len(devices), broken, err)
			}
		})
	}
}

// GPUs come and go while the machine runs: the next look sees it, in the same session of NVML.
func TestDiscoverAddedAndRemovedGPUs(t *testing.T) {
	m, node := machine(t, "t4-x2")
	look, err := node.Discover(t.Context())
	before := look.Devices
	if err != nil {
		t.Fatal(err)
	}
	ids := map[gpu.UUID]int{before[0].UUID: 0, before[1].UUID: 1}
	const first, second, added = "gpu-3b-00-0 uuid=0 minor=0 numa=0 pci0000:3a",
		"gpu-af-00-0 uuid=1 minor=1 numa=1 pci0000:ae",
		"gpu-b0-00-0 uuid=2 minor=2 numa=1 pci0000:ae"
	for _, row := range []struct {
		name   string
		change func() error
		want   string
		broken string
	}{
		{"one falls off the bus", func() error { return m.Unplug("gpu-3b-00-0") }, second,
			"GPU 0: get handle: ERROR_GPU_IS_LOST"},
		{"one is added", func() error { _, err := m.Add("gpu-af-00-0", simulator.Address{}); return err }, second +
			"; " + added, "GPU 0: get handle: ERROR_GPU_IS_LOST"},
		{"it comes back", func() error { return m.Plug("gpu-3b-00-0") }, first + "; " + second + "; " + added, ""},
		{"one is removed", func() error { return m.Remove("gpu-3b-00-0") }, second + "; " + added, ""},
		{"all are gone", func() error { return errors.Join(m.Remove("0"), m.Remove("0")) }, "", ""},
	} {
		if err := row.change(); err != nil {
			t.Fatal(err)
		}
		look, err := node.Discover(t.Context())
		devices, broken := look.Devices, look.Broken
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		devices = slices.DeleteFunc(devices, func(d gpu.Device) bool { return d.Lost })
		for i, d := range devices {
			if _, known := ids[d.UUID]; !known {
				ids[d.UUID] = len(ids)
			}
			if d.Index < i {
				t.Errorf("%s: index %d of the GPU at %d", row.name, d.Index, i)
			}
			got = append(got, fmt.Sprintf("%s uuid=%d minor=%d numa=%d %s", d.Name, ids[d.UUID], d.Minor, d.NUMANode,
				d.PCIeRoot))
		}
		if got := strings.Join(got, "; "); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
		if err := errors.Join(broken...); (err == nil) != (row.broken == "") || err != nil &&
			err.Error() != row.broken {
			t.Errorf("%s: broken %v, want %s", row.name, err, row.broken)
		}
		for _, d := range devices { // what a container gets does not depend on those that are not there
			access, err := toolkitOf(node).Access(t.Context(), d)
			if err != nil || access.Nodes[0].Minor != int64(d.Minor) {
				t.Errorf("%s: access to %s: %v, %v", row.name, d.Name, access.Nodes, err)
			}
		}
		if _, err := toolkitOf(node).DriverAccess(t.Context()); err != nil {
			t.Errorf("%s: %v", row.name, err)
		}
	}
}

// What a GPU does not support is not an error: the fact is left at its default.
func TestDiscoverWithoutOptionalAnswers(t *testing.T) {
	m, node := machine(t, "t4-x2")
	for _, call := range []string{"GetGpuFabricInfo", "GetNvLinkState", "GetNumGpuCores", "GetMaxClockInfo",
		"GetMemoryBusWidth"} {
		if err := m.Fail("0", call, "ERROR_NOT_SUPPORTED"); err != nil {
			t.Fatal(err)
		}
	}
	look, err := node.Discover(t.Context())
	devices, broken := look.Devices, look.Broken
	if err != nil || len(broken) > 0 {
		t.Fatal(err, broken)
	}
	p := devices[0].Product
	got := fmt.Sprint(p.Multiprocessors, p.MemoryBandwidth, p.PeakCompute,
		devices[0].Topology.NVLinkDomain == string(devices[0].UUID))
	if want := "0 0 65 true"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A GPU is gone, so the others have other indices, and one of these does not answer. What was known at its index is
// another GPU, which answers.
func TestSilentGPUAfterIndicesHaveShifted(t *testing.T) {
	m, n := following(t, "dgx-h100")
	before, err := n.Discover(t.Context())
	must(t, err)
	gone, silent := before.Devices[0], before.Devices[7]
	must(t, m.RemoveGPU(gone.Name))
	must(t, m.Fail(silent.Name, "GetUUID", "ERROR_GPU_IS_LOST"))
	for range 2 {
		look, err := n.Discover(t.Context())
		must(t, err)
		names := map[string]bool{} // of lost and other GPUs
		for _, d := range look.Devices {
			if _, twice := names[d.Name]; twice {
				t.Errorf("%s is found twice", d.Name)
			}
			names[d.Name] = d.Lost
		}
		for _, d := range before.Devices[1:7] {
			if lost, ok := names[d.Name]; !ok || lost {
				t.Errorf("%s answers; found: %v, lost: %v", d.Name, ok, lost)
			}
		}
		// Nobody can tell which of the two GPUs that do not answer NVML still counts.
		if len(names) != 7 || names[gone.Name] == names[silent.Name] {
			t.Errorf("got %v, want seven GPUs, one of which is lost", names)
		}
	}
}
