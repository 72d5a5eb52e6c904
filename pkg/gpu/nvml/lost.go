// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// withLost adds the GPUs that NVML counts but that do not answer, as lost, because claims may hold them. A GPU of
// unknown PCI address gets the next address at which Linux has a GPU and NVML has no other one, in NVML's order.
func withLost(sysfs string, devices, silent []gpu.Device) []gpu.Device {
	if len(silent) == 0 {
		return devices
	}
	for i, d := range silent {
		if d.UUID != "" && slices.ContainsFunc(devices, func(other gpu.Device) bool { return other.UUID == d.UUID }) {
			silent[i] = gpu.Device{Index: d.Index} // indices have shifted since it was read
		}
	}
	all := slices.Clone(devices)
	free := slices.DeleteFunc(onBus(sysfs), func(at gpu.PCIAddress) bool {
		return slices.ContainsFunc(slices.Concat(devices, silent), func(d gpu.Device) bool { return d.PCI == at })
	})
	for _, d := range silent {
		if d.PCI == (gpu.PCIAddress{}) {
			if len(free) == 0 {
				continue
			}
			d.PCI, free = free[0], free[1:]
		}
		lost := gpu.Device{Name: d.PCI.DeviceName(), Type: gpu.TypeGPU,
			UUID: cmp.Or(d.UUID, gpu.UUID(d.PCI.DeviceName())), PCI: d.PCI,
			NUMANode: gpu.NoNUMANode, Index: d.Index, Lost: true}
		lost.Topology = gpu.Topology{NVLinkDomain: string(lost.UUID), FabricDomain: string(lost.UUID)}
		all = append(all, lost)
	}
	slices.SortStableFunc(all, func(a, b gpu.Device) int { return cmp.Compare(a.Index, b.Index) })
	return all
}

const (
	vendorNVIDIA = "0x10de"
	classDisplay = "0x03" // prefix of the PCI class of display controllers, which includes GPUs without a display
)

// onBus returns the PCI addresses of NVIDIA GPUs in sysfs, ascending.
func onBus(sysfs string) []gpu.PCIAddress {
	dir := filepath.Join(sysfs, "bus/pci/devices")
	entries, _ := os.ReadDir(dir)
	var found []gpu.PCIAddress
	for _, e := range entries {
		at, err := gpu.ParsePCIAddress(e.Name())
		if err == nil && begins(filepath.Join(dir, e.Name(), "vendor"), vendorNVIDIA) &&
			begins(filepath.Join(dir, e.Name(), "class"), classDisplay) {
			found = append(found, at)
		}
	}
	return found
}

func begins(file, with string) bool {
	text, err := os.ReadFile(file)
	return err == nil && strings.HasPrefix(string(text), with)
}
