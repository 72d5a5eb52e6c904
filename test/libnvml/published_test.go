// SPDX-License-Identifier: Apache-2.0

package libnvml

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

// published returns the devices that the driver publishes of the node, with those partitions, when it asks that
// library.
func published(t *testing.T, n *simulator.Node, lib gonvml.Interface, partitions gpu.Partitions) []resourceapi.Device {
	t.Helper()
	open, err := nvml.Open(nvml.MachineConfig{Library: lib, Sysfs: filepath.Join(n.DriverRoot(), "sys"),
		Timeout: simtest.Patience})
	must(t, err)
	look, err := open.Discover(t.Context())
	must(t, err)
	if len(look.Broken) > 0 {
		t.Fatal(look.Broken)
	}
	for i := range look.Devices {
		if look.Devices[i].MIG.Switchable || look.Devices[i].MIG.Enabled {
			look.Devices[i].Use.Partitions = partitions
		}
	}
	var out []resourceapi.Device
	none := func(gpu.Placement) bool { return false }
	pools := inventory.New(look.Devices).WithPartitions(none).Pools("node")
	for _, s := range inventory.Slices("gpu.nvidia.com", "node", pools) {
		out = append(out, s.Spec.Devices...)
	}
	return out
}

// ofType returns the devices of a type.
func ofType(devices []resourceapi.Device, name string) []resourceapi.Device {
	var out []resourceapi.Device
	for _, d := range devices {
		if text(d, "type") == name {
			out = append(out, d)
		}
	}
	return out
}

// text returns an attribute as text.
func text(d resourceapi.Device, name resourceapi.QualifiedName) string {
	a := d.Attributes[name]
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case a.VersionValue != nil:
		return *a.VersionValue
	case a.BoolValue != nil:
		return fmt.Sprint(*a.BoolValue)
	case a.IntValue != nil:
		return fmt.Sprint(*a.IntValue)
	}
	return ""
}

// part returns a part of an attribute that is a version.
func part(d resourceapi.Device, name resourceapi.QualifiedName, i int) string {
	return strings.Split(text(d, name), ".")[i]
}

// mebibytes returns the memory of the device.
func mebibytes(d resourceapi.Device) string {
	memory := d.Capacity["memory"].Value
	return fmt.Sprint(memory.Value() >> 20)
}

// TestNVIDIADriver: the driver publishes the same when it asks the library as it asks NVIDIA's.
func TestNVIDIADriver(t *testing.T) {
	for _, profile := range simulator.Profiles() {
		t.Run(profile, func(t *testing.T) {
			n := simulate(t, builtIn(t, profile, ""))
			want := published(t, n, n.NVML(), gpu.PartitionsDynamic)
			got := published(t, n, gonvml.New(gonvml.WithLibraryPath(library(t))), gpu.PartitionsDynamic)
			if diff := cmp.Diff(got, want); diff != "" || len(want) < 2 {
				t.Errorf("got - want +\n%s", diff)
			}
		})
	}
}
