// SPDX-License-Identifier: Apache-2.0

package nvml

import nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

// PartitionUUID returns the UUID of a compute instance, which is that of its MIG device. Error: ERROR_NOT_FOUND if it
// has none.
//
// nvml.h says that the device of a compute instance is the parent device, and nvidia-smi prints the index of that
// device as the GPU. NVIDIA's DRA driver took the UUID of this device as the partition's until its v0.5. Both work
// here.
func PartitionUUID(info nvmllib.ComputeInstanceInfo) (string, nvmllib.Return) {
	if mig, ret := info.Device.IsMigDeviceHandle(); ret == nvmllib.SUCCESS && mig {
		return info.Device.GetUUID()
	}
	instance, ret := info.GpuInstance.GetInfo()
	if ret != nvmllib.SUCCESS {
		return "", ret
	}
	count, ret := info.Device.GetMaxMigDeviceCount()
	if ret != nvmllib.SUCCESS {
		return "", ret
	}
	for i := range count {
		d, ret := info.Device.GetMigDeviceHandleByIndex(i)
		if removed(ret) {
			continue // no MIG device has this index
		}
		if ret != nvmllib.SUCCESS {
			return "", ret
		}
		of, ret := d.GetGpuInstanceId()
		id, alsoRet := d.GetComputeInstanceId()
		if ret == nvmllib.SUCCESS && alsoRet == nvmllib.SUCCESS && of == int(instance.Id) && id == int(info.Id) {
			return d.GetUUID()
		}
	}
	return "", nvmllib.ERROR_NOT_FOUND
}
