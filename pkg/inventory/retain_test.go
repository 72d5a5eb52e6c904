// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
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
			name, silent := strings.CutSuffix(name, "?")
			name, gone := strings.CutSuffix(name, "!")
			devices = append(devices, gpu.Device{Name: name, PCI: gpu.PCIAddress{Bus: name[0]}, Lost: silent || gone,
				Gone: gone, Index: i})
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
		{"a GPU that does not answer is not gone", "a b?", "a b", "", "a b?"},
		{"it is gone when NVML says so", "a b!", "a b?", "", "a b!"},
		{"it is gone when NVML does not list it", "a", "a b?", "b", "a b!"},
		{"what is gone stays so until it answers", "a b?", "a b!", "", "a b!"},
	} {
		t.Run(row.name, func(t *testing.T) {
			held := func(device string) bool { return strings.Contains(row.held, device) }
			var got []string
			for _, d := range inv(row.found).Retain(inv(row.known), held) {
				switch {
				case d.Gone:
					d.Name += "!"
				case d.Lost:
					d.Name += "?"
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

// A GPU that has another place on the PCI bus has another name. A claim from before knows it by the former one.
func TestRetainAGPUThatHasMoved(t *testing.T) {
	was := gpu.Device{Name: "gpu-3b-00-0", UUID: "GPU-1", Type: gpu.TypeGPU, PCI: gpu.PCIAddress{Bus: 0x3b},
		Memory: 1 << 30}
	now, other := was, was
	now.Name, now.PCI = "gpu-5e-00-0", gpu.PCIAddress{Bus: 0x5e}
	other.UUID = "GPU-2"
	at := gpu.Placement{Parent: "GPU-1", Profile: "1g.10gb", Size: 1}
	part := gpu.Device{Name: gpu.PartitionName(was.Name, at), UUID: "MIG-1", Type: gpu.TypeMIG, PCI: was.PCI,
		Partition: &gpu.Partition{Placement: at, UUID: "MIG-1", Static: true}}
	for _, row := range []struct {
		name         string
		found, known inventory.Inventory
		held         bool
		want         string
	}{
		{"nobody holds it", inventory.Inventory{now}, inventory.Inventory{was}, false, "gpu-5e-00-0 GPU-1"},
		{"a claim holds the former name", inventory.Inventory{now}, inventory.Inventory{was}, true,
			"gpu-3b-00-0 gpu-3b-00-0 lost, moved to gpu-5e-00-0; gpu-5e-00-0 GPU-1"},
		{"and a partition", inventory.Inventory{now}, inventory.Inventory{part}, true,
			"gpu-5e-00-0 GPU-1; gpu-3b-00-0-mig-1g10gb-0 gpu-3b-00-0-mig-1g10gb-0 of gpu-3b-00-0 lost, " +
				"moved to gpu-5e-00-0"},
		{"another GPU has the former name", inventory.Inventory{other, now}, inventory.Inventory{was}, true,
			"gpu-3b-00-0 GPU-2; gpu-5e-00-0 GPU-1"},
		{"it does not answer at its new place", inventory.Inventory{{Name: "gpu-5e-00-0", UUID: "GPU-1",
			PCI: now.PCI, Lost: true}}, inventory.Inventory{was}, true,
			"gpu-3b-00-0 GPU-1 lost; gpu-5e-00-0 GPU-1 lost"},
	} {
		t.Run(row.name, func(t *testing.T) {
			inv := row.found
			for range 2 { // the second time changes nothing
				inv = row.found.Retain(append(row.known, inv...), func(string) bool { return row.held })
				var got []string
				for _, d := range inv {
					text := fmt.Sprint(d.Name, " ", d.UUID)
					if d.Partition != nil {
						text += fmt.Sprint(" of ", d.Partition.Parent)
					}
					if d.Lost {
						text += " lost"
					}
					if d.MovedTo != "" {
						text += ", moved to " + d.MovedTo
					}
					got = append(got, text)
				}
				if got := strings.Join(got, "; "); got != row.want {
					t.Errorf("got  %s\nwant %s", got, row.want)
				}
				row.known = nil
			}
		})
	}
}
