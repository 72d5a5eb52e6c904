// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/passthrough"
)

// isVGPU reports whether this machine is a virtual one and the GPU a part of one of its host. A whole GPU that the host
// has passed through works as on the host.
func isVGPU(handle nvmllib.Device) bool {
	mode, ret := handle.GetVirtualizationMode()
	return ret == nvmllib.SUCCESS && mode == nvmllib.GPU_VIRTUALIZATION_MODE_VGPU
}

// guest returns nil if the GPU is no vGPU. NVML does not know the driver of the host, but the PCI function does.
func (s *session) guest(handle nvmllib.Device, at gpu.PCIAddress) *gpu.Guest {
	if !isVGPU(handle) {
		return nil
	}
	return &gpu.Guest{HostDriver: passthrough.Bus{Sysfs: s.config.Sysfs}.HostDriver(at), License: s.license(handle)}
}

// license returns the license of a vGPU. NVML says whether there is one, and not whether the vGPU is slowed down
// already. Drivers before R470 do not have the call.
func (s *session) license(handle nvmllib.Device) gpu.License {
	if !s.has("nvmlDeviceGetGridLicensableFeatures_v4") {
		return gpu.License{}
	}
	all, ret := handle.GetGridLicensableFeatures()
	if ret != nvmllib.SUCCESS {
		return gpu.License{}
	}
	return LicenseOf(all)
}

// LicenseOf returns the license of the first feature that is enabled. The zero value: the machine needs no licenses.
func LicenseOf(all nvmllib.GridLicensableFeatures) gpu.License {
	if all.IsGridLicenseSupported == 0 {
		return gpu.License{}
	}
	for i, f := range all.GridLicensableFeatures {
		if i >= int(all.LicensableFeaturesCount) || f.FeatureEnabled == 0 {
			continue
		}
		l := gpu.License{State: gpu.Unlicensed, Product: text(f.ProductName[:])}
		if f.FeatureState != 0 {
			l.State = gpu.Licensed
		}
		if e := f.LicenseExpiry; e.Status == nvmllib.GRID_LICENSE_EXPIRY_VALID {
			l.Expiry = time.Date(int(e.Year), time.Month(e.Month), int(e.Day), int(e.Hour), int(e.Min), int(e.Sec), 0,
				time.UTC)
		}
		return l
	}
	return gpu.License{State: gpu.Unlicensed}
}
