// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/passthrough"
)

// isOutdated reports whether NVIDIA's driver had other functions than these when the session was opened: NVML may count
// only the GPUs of its start.
func (m *Machine) isOutdated(bound []string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.follows && m.current != nil && !slices.Equal(m.current.bound, bound)
}

// Removed reports whether the GPU is no longer on the PCI bus. One that has fallen off the bus still is. false: the bus
// cannot be read.
func (m *Machine) Removed(d gpu.Device) bool {
	devices := filepath.Join(m.Sysfs, "bus/pci/devices")
	if _, err := os.Stat(devices); err != nil || d.PCI == (gpu.PCIAddress{}) {
		return false
	}
	_, err := os.Lstat(filepath.Join(devices, d.PCI.String()))
	return errors.Is(err, fs.ErrNotExist)
}

// withLost adds the GPUs that NVML counts but that do not answer, as lost, because claims may hold them. A GPU of
// unknown PCI address gets the next address at which Linux has a GPU and NVML has no other one, in NVML's order.
func withLost(sysfs string, devices, silent []gpu.Device) []gpu.Device {
	if len(silent) == 0 {
		return devices
	}
	for i, d := range silent {
		if d.UUID != "" && slices.ContainsFunc(devices, func(other gpu.Device) bool { return other.UUID == d.UUID }) {
			// Indices have shifted since it was read.
			silent[i] = gpu.Device{Index: d.Index, Gone: d.Gone, ResetRequired: d.ResetRequired}
		}
	}
	all := slices.Clone(devices)
	onBus, _ := passthrough.Bus{Sysfs: sysfs}.GPUs() // none if the bus cannot be read
	free := slices.DeleteFunc(onBus, func(g passthrough.GPU) bool {
		listed := func(d gpu.Device) bool { return d.PCI == g.PCI }
		return g.Driver == passthrough.Driver || slices.ContainsFunc(slices.Concat(devices, silent), listed)
	})
	for _, d := range silent {
		if d.PCI == (gpu.PCIAddress{}) {
			if len(free) == 0 {
				continue
			}
			d.PCI, free = free[0].PCI, free[1:]
		}
		lost := gpu.Device{Name: d.PCI.DeviceName(), Type: gpu.TypeGPU,
			UUID: cmp.Or(d.UUID, gpu.UUID(d.PCI.DeviceName())), PCI: d.PCI,
			NUMANode: gpu.NoNUMANode, Index: d.Index, Lost: true, Gone: d.Gone, ResetRequired: d.ResetRequired}
		lost.Topology = gpu.Topology{NVLinkDomain: string(lost.UUID), FabricDomain: string(lost.UUID)}
		all = append(all, lost)
	}
	slices.SortStableFunc(all, func(a, b gpu.Device) int { return cmp.Compare(a.Index, b.Index) })
	return all
}
