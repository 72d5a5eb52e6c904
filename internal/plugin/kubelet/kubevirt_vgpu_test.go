// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"path"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// KubeVirt finds the mediated device of a vGPU in the container of virt-launcher, or else a PCI address. Lines are
// those of github.com/kubevirt/kubevirt at commits 0523d9b0e928 (pkg/dra/utils.go) and 14dfb2770838
// (pkg/dra/metadata/types.go):
//   - utils.go 89-93: GetMDevUUIDForClaim takes the string attribute, if it is not empty;
//   - types.go 56-60: the attribute is mdevUUID, without a domain, and the PCI address resource.kubernetes.io/pciBusID.
//
// A device that has both is a mediated device for KubeVirt: createHostDeviceForGPU in gpu_hostdev.go of
// pkg/virt-launcher/virtwrap/device/hostdevice/dra looks for mdevUUID first.
func TestVGPUMetadataForKubeVirt(t *testing.T) {
	const existing, madeFor = "6d8ba0b6-2d0c-4c5e-9a31-2f6c3c2a5d10", "uid/gpu-10-00-0-vgpu-a16-4q-0"
	at, function := gpu.PCIAddress{Bus: 0x10}, gpu.PCIAddress{Bus: 0x11, Function: 4}
	kind := gpu.VGPUType{Name: "A16-4Q", Memory: 4 << 30, Max: 4}
	node := &vms{inv: inventory.New([]gpu.Device{
		{Name: "gpu-10-00-0", Type: gpu.TypeGPU, PCI: at, UUID: "GPU-0", VGPUs: &gpu.VGPUs{
			Types:    []gpu.VGPUType{kind},
			Existing: []gpu.VGPU{{Parent: "GPU-0", Type: kind, Function: at, MDev: existing}}}},
		{Name: "gpu-11-00-0", Type: gpu.TypeGPU, PCI: gpu.PCIAddress{Bus: 0x11}, UUID: "GPU-1", VGPUs: &gpu.VGPUs{
			Existing: []gpu.VGPU{{Parent: "GPU-1", Type: kind, Function: function, Number: 0}}}},
	}).WithPartitions(func(gpu.Placement) bool { return false })}
	for _, row := range []struct{ name, device, uuid, pci string }{
		{"one that exists", "gpu-10-00-0-vgpu-" + existing, existing, "0000:10:00.0"},
		{"one that is made", "gpu-10-00-0-vgpu-a16-4q-0", madeFor, "0000:10:00.0"},
		{"a virtual function", "gpu-11-00-0-vgpu-vf0", "", "0000:11:00.4"},
	} {
		t.Run(row.name, func(t *testing.T) {
			claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim",
				UID: "uid"}}
			claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: "gpu.nvidia.com",
					Pool: "node", Device: row.device}}}}
			file := mountsOf(t, node, claim)[path.Join("/var/run/kubernetes.io/dra-device-attributes/resourceclaims",
				"claim/gpu/gpu.nvidia.com-metadata.json")]
			for attribute, want := range map[string]string{"mdevUUID": row.uuid,
				"resource.kubernetes.io/pciBusID": row.pci} {
				if got, err := attributeOf(file, "gpu", attribute); err != nil || got != want {
					t.Errorf("%s: got %q, %v, want %q", attribute, got, err, want)
				}
			}
		})
	}
}
