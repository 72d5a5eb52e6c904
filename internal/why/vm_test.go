// SPDX-License-Identifier: Apache-2.0

package why

import (
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// Who waits for a GPU that a virtual machine has, or for one that it could have, is told what holds it.
func TestVirtualMachines(t *testing.T) {
	vm := func(count string) string {
		return requests("[{name: gpu, exactly: {deviceClassName: vfio.gpu.nvidia.com, count: " + count + "}}]")
	}
	const held = "claim ns/h: gpu-aa-00-0-vfio, gpu-a8-00-0-vfio, gpu-3a-00-0-vfio, gpu-38-00-0-vfio on node a"
	for _, row := range []struct{ name, profile, holder, asked, cause, text string }{
		{"GPUs are in virtual machines", "l40s-x4", vm("4"), gpus(""),
			"the 4 devices of class gpu.nvidia.com are held by other claims", held},
		{"no shares are left of them", "l40s-x4", vm("4"), gpus(", capacity: {requests: {memory: 1Gi}}"),
			"the 4 devices of class gpu.nvidia.com are held by other claims", held},
		{"other pods have the GPUs", "l40s-x4", gpus(", count: 4"), vm("1"),
			"the 4 devices of class vfio.gpu.nvidia.com are held by other claims", "claim ns/h: gpu-38-00-0, "},
		{"one GPU is in a virtual machine", "l40s-x4", vm("1"), vm("4"),
			"it wants 4 devices of one node, and no node has more than 3 for it; of the others, 1 is held by other " +
				"claims",
			"claim ns/h: gpu-aa-00-0-vfio on node a"},
		{"the machine has no IOMMU", "t4-x2", "", vm("1"),
			"no node has a device of class vfio.gpu.nvidia.com; an administrator offers GPUs to virtual machines " +
				"(virtualMachines.enabled of the chart), a node needs an IOMMU and the driver vfio-pci, and the " +
				"command check says what is missing", ""},
		{"the machine has no vGPUs", "t4-x2", "", strings.ReplaceAll(vm("1"), "vfio.gpu.", "vgpu."),
			"no node has a device of class vgpu.nvidia.com; an administrator offers GPUs to virtual machines " +
				"(virtualMachines.enabled of the chart), a node needs NVIDIA's driver for hosts of vGPUs, and the " +
				"command check says what is missing", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: row.profile})
			if row.holder != "" {
				mustHold(t, s, claim(t, "h", row.holder))
			}
			s.Claims = append(s.Claims, claim(t, "c", row.asked))
			r, err := Claim(t.Context(), s, "ns", "c")
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimPrefix(r.Cause, "claim c waits: request gpu of claim c: "); got != row.cause {
				t.Errorf("got %s\nwant %s", got, row.cause)
			}
			if got := text(t, r); !strings.Contains(got, row.text) {
				t.Errorf("got %s\nwant it to have %s", got, row.text)
			}
		})
	}
}
