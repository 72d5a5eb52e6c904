// SPDX-License-Identifier: Apache-2.0

package sharing_test

import (
	"errors"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Nobody holds a GPU that has just been returned by a virtual machine. Its device node may have another number than
// before, so a container gets it once it has been looked at.
func TestGPUThatComesBack(t *testing.T) {
	for _, row := range []struct {
		name, device string
		bound        bool
		want         error
	}{
		{"not looked at yet", "gpu-3b-00-0", true, sharing.ErrInUse},
		{"looked at", "gpu-3b-00-0", false, nil},
		{"for the next virtual machine", "gpu-3b-00-0-vfio", true, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := gpu.Device{Name: row.device, Type: gpu.TypeGPU, UUID: "GPU-1",
				VFIO: &gpu.VFIO{Bound: row.bound, Functions: []gpu.PCIFunction{{Driver: "nvidia"}}}}
			if gpu.IsVFIO(row.device) {
				d.Type = gpu.TypeVFIO
			}
			results := []allocation.Result{{Request: "gpu", Device: row.device}}
			_, err := sharing.NewPlan(results, inventory.Inventory{d}, nil)
			if !errors.Is(err, row.want) || (err == nil) != (row.want == nil) {
				t.Errorf("got %v, want %v", err, row.want)
			}
		})
	}
}
