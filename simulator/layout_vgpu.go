// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// layOutVGPUs creates what /sys has of the mediated devices of the GPU at way: their types below the GPU, and the
// devices themselves. It adds the directories to keep, and the UUIDs to those of the machine.
func layOutVGPUs(sys, way string, c node.GPU, keep map[string]bool, uuids *[]string) error {
	var errs []error
	dir, up := filepath.Join(sys, way), strings.Repeat("../", strings.Count(way, "/")+1)
	types := c.VGPUTypes()
	if len(types) > 0 {
		keep[filepath.Join(dir, "mdev_supported_types")] = true
	}
	for _, t := range types {
		of := filepath.Join(dir, "mdev_supported_types", t.ID)
		keep[of], keep[filepath.Join(of, "devices")] = true, true
		for name, text := range map[string]string{"name": t.Name, "device_api": "vfio-pci",
			"available_instances": fmt.Sprint(c.AvailableVGPUs(t)), "description": fmt.Sprintf("num_heads=4, "+
				"frl_config=60, framebuffer=%dM, max_resolution=7680x4320, max_instance=%d", t.Memory, t.Max)} {
			errs = append(errs, ensureFile(filepath.Join(of, name), []byte(text+"\n"), 0o444))
		}
		errs = append(errs, ensureFile(filepath.Join(of, "create"), nil, 0o200),
			os.MkdirAll(filepath.Join(of, "devices"), 0o755))
		var devices []string
		for _, d := range c.State.VGPUs {
			if d.Type != t.ID {
				continue
			}
			devices = append(devices, d.UUID)
			own := filepath.Join(dir, d.UUID)
			keep[own] = true
			errs = append(errs,
				ensureLink(filepath.Join(of, "devices", d.UUID), filepath.Join("../../..", d.UUID)),
				ensureLink(filepath.Join(own, "mdev_type"), filepath.Join("../mdev_supported_types", t.ID)),
				ensureLink(filepath.Join(own, "iommu_group"), fmt.Sprint("../", up, "kernel/iommu_groups/", d.Group)),
				ensureFile(filepath.Join(own, "remove"), nil, 0o200),
				ensureLink(filepath.Join(sys, "bus/mdev/devices", d.UUID), filepath.Join("../../..", way, d.UUID)))
		}
		errs = append(errs, keepOnly(filepath.Join(of, "devices"), "*", devices))
		*uuids = append(*uuids, devices...)
	}
	return errors.Join(errs...)
}
