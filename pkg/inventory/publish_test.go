// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

const (
	driver   = "gpu.nvidia.com"
	nodeName = "node-1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// poolOf is the pool of the GPUs.
func poolOf(devices []gpu.Device) inventory.Pool {
	return inventory.New(devices).Pools(nodeName)[nodeName]
}

// What every built-in profile publishes, with the UUIDs numbered, and what real machines published, of which
// testdata/recorded has recordings (dra-kubelet-plugin record).
func TestPublished(t *testing.T) {
	recordings, err := filepath.Glob("testdata/recorded/*.yaml")
	if err != nil || len(recordings) == 0 {
		t.Fatal(recordings, err)
	}
	for _, profile := range append(simulator.Profiles(), recordings...) {
		t.Run(profile, func(t *testing.T) {
			devices := simtest.Discover(t, profile)
			pools := inventory.New(devices).Pools(nodeName)
			got := ""
			for _, name := range slices.Sorted(maps.Keys(pools)) {
				out, err := yaml.Marshal(pools[name].Slices)
				if err != nil {
					t.Fatal(err)
				}
				got += "# pool " + name + "\n" + string(out)
			}
			for i, d := range devices {
				got = strings.ReplaceAll(got, string(d.UUID), fmt.Sprintf("<uuid %d>", i))
			}
			file := filepath.Join("testdata", profile+".yaml")
			if strings.Contains(profile, "/") {
				file = strings.TrimSuffix(profile, ".yaml") + ".published"
			}
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

func TestOrder(t *testing.T) {
	device := func(bus uint8, peak int, memory uint64) gpu.Device {
		pci := gpu.PCIAddress{Bus: bus}
		return gpu.Device{Name: pci.DeviceName(), PCI: pci, Product: gpu.Product{PeakCompute: peak}, Memory: memory}
	}
	devices := []gpu.Device{device(4, 65, 16), device(2, 989, 80), device(1, 312, 40), device(9, 312, 80),
		device(3, 989, 80)}
	want := "gpu-02-00-0 gpu-03-00-0 gpu-09-00-0 gpu-01-00-0 gpu-04-00-0"
	for range 2 {
		var names []string
		for _, d := range inventory.New(devices) {
			names = append(names, d.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("\ngot  %s\nwant %s", got, want)
		}
		slices.Reverse(devices)
	}
}

func TestSlicesWithinAPILimits(t *testing.T) {
	for count, want := range map[int]string{0: "[0]", 1: "[1]", 64: "[64]", 65: "[64 1]", 130: "[64 64 2]"} {
		var sizes []int
		for _, s := range poolOf(make([]gpu.Device, count)).Slices {
			sizes = append(sizes, len(s.Devices))
		}
		if got := fmt.Sprint(sizes); got != want {
			t.Errorf("%d devices: got slices of %s, want %s", count, got, want)
		}
	}
}

// A selector that meets a device without an attribute fails for the whole pod.
func TestDevicesHaveTheSameAttributes(t *testing.T) {
	full := poolOf(simtest.Discover(t, "mixed")).Slices[0].Devices[0]
	// a bare GPU and the monitor
	bare := []gpu.Device{{NUMANode: gpu.NoNUMANode}}
	for _, other := range append(poolOf(bare).Slices[0].Devices, monitorOf(t, nodeName)) {
		if diff := cmp.Diff(attributeNames(other), attributeNames(full)); diff != "" {
			t.Errorf("%s - full +\n%s", other.Name, diff)
		}
	}
}

// attributeNames are those that every device has.
func attributeNames(d resourceapi.Device) []string {
	var own []string
	for name := range maps.Keys(d.Attributes) {
		if !strings.HasPrefix(string(name), "resource.kubernetes.io/") {
			own = append(own, string(name))
		}
	}
	slices.Sort(own)
	return own
}

// The API server refuses a range with a step above the capacity.
func TestUnlimitedGPUOfUnknownMemory(t *testing.T) {
	device := poolOf([]gpu.Device{{Use: gpu.SharingMode{Sharing: gpu.Unlimited}}}).Slices[0].Devices[0]
	policy := device.Capacity["memory"].RequestPolicy
	if policy == nil || policy.ValidRange != nil || len(policy.ValidValues) != 1 || !policy.ValidValues[0].IsZero() {
		t.Errorf("got request policy %+v of the memory, want 0 as the only value", policy)
	}
	if device.AllowMultipleAllocations == nil || !*device.AllowMultipleAllocations {
		t.Error("the GPU is for one claim")
	}
}

func TestUnusualValues(t *testing.T) {
	publish := func(d gpu.Device) map[string]string {
		out := map[string]string{}
		device := poolOf([]gpu.Device{d}).Slices[0].Devices[0]
		for name, a := range device.Attributes {
			switch {
			case a.VersionValue != nil:
				out[string(name)] = *a.VersionValue
			case a.StringValue != nil:
				out[string(name)] = *a.StringValue
			}
		}
		memory := device.Capacity["memory"].Value
		out["memory"] = memory.String()
		return out
	}
	for _, row := range []struct {
		name   string
		device gpu.Device
		key    string
		want   string
	}{
		{"leading zeros in a version are dropped", gpu.Device{DriverVersion: "580.95.05"}, "driverVersion", "580.95.5"},
		{"a version of two parts gets a third", gpu.Device{DriverVersion: "470.57"}, "driverVersion", "470.57.0"},
		{"a version of four parts loses one", gpu.Device{DriverVersion: "1.2.3.4"}, "driverVersion", "1.2.3"},
		{"letters in a version are dropped", gpu.Device{DriverVersion: "580.95rc1.05-beta"}, "driverVersion",
			"580.95.5"},
		{"no version is 0.0.0", gpu.Device{}, "driverVersion", "0.0.0"},
		{"memory is rounded down to 1 MiB", gpu.Device{Memory: 5<<30 + 1<<20 - 1}, "memory", "5Gi"},
		{"a long name is cut at 64 bytes", gpu.Device{Product: gpu.Product{Name: strings.Repeat("x", 70)}},
			"productName", strings.Repeat("x", 64)},
		{"a long name is cut between characters", gpu.Device{Product: gpu.Product{Name: strings.Repeat("x", 63) + "ß"}},
			"productName", strings.Repeat("x", 63)},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := publish(row.device)[row.key]; got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}
