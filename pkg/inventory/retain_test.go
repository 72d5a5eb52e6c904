// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

func TestRetain(t *testing.T) {
	inv := func(names string) inventory.Inventory {
		var devices []gpu.Device
		for i, name := range strings.Fields(names) {
			name, lost := strings.CutSuffix(name, "!")
			devices = append(devices, gpu.Device{Name: name, PCI: gpu.PCIAddress{Bus: name[0]}, Lost: lost, Index: i})
		}
		return inventory.New(devices)
	}
	for _, row := range []struct{ name, found, known, held, want string }{
		{"first discovery", "a b", "", "a", "a b"},
		{"no change", "a b", "a b", "a b", "a b"},
		{"a free GPU that is missed once is lost: a claim may be on its way to it", "a", "a b", "a", "a b!"},
		{"a GPU missing twice is removed", "a", "a b!", "a", "a"},
		{"a GPU in use is kept as lost", "a", "a b", "b", "a b!"},
		{"a lost GPU stays while it is in use", "a", "a b!", "b", "a b!"},
		{"a lost GPU is removed after its release", "a", "a b!", "", "a"},
		{"a lost GPU that returns is healthy", "a b", "a b!", "b", "a b"},
		{"a new GPU is added", "a b c", "a b", "", "a b c"},
	} {
		t.Run(row.name, func(t *testing.T) {
			held := func(device string) bool { return strings.Contains(row.held, device) }
			var got []string
			for _, d := range inv(row.found).Retain(inv(row.known), held) {
				if d.Lost {
					d.Name += "!"
				}
				got = append(got, d.Name)
			}
			if got := strings.Join(got, " "); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

// A lost GPU stays published, so that the scheduler remembers who has it, and gets no further claims.
func TestALostGPUIsTainted(t *testing.T) {
	devices := simtest.Discover(t, "t4-x2")
	devices[0].Lost = true
	if got, want := allocate(t, slicesOf(devices), `[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]`, nil),
		"gpu=gpu-af-00-0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := len(poolOf(devices).Slices[0].Devices); got != 2 {
		t.Errorf("published %d devices, want 2 GPUs", got)
	}
}
