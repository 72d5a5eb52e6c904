// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"testing"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
)

// migDevice is the MIG device of two instances.
func migDevice(uuid string, instance, compute int) nvmllib.Device {
	return &mock.Device{
		IsMigDeviceHandleFunc:    func() (bool, nvmllib.Return) { return true, nvmllib.SUCCESS },
		GetUUIDFunc:              func() (string, nvmllib.Return) { return uuid, nvmllib.SUCCESS },
		GetGpuInstanceIdFunc:     func() (int, nvmllib.Return) { return instance, nvmllib.SUCCESS },
		GetComputeInstanceIdFunc: func() (int, nvmllib.Return) { return compute, nvmllib.SUCCESS },
	}
}

// TestPartitionUUID: the device of a compute instance is the GPU or the MIG device.
func TestPartitionUUID(t *testing.T) {
	all := []nvmllib.Device{migDevice("MIG-a", 1, 0), nil, migDevice("MIG-b", 2, 0), migDevice("MIG-c", 2, 1)}
	gpu := &mock.Device{
		IsMigDeviceHandleFunc:    func() (bool, nvmllib.Return) { return false, nvmllib.SUCCESS },
		GetUUIDFunc:              func() (string, nvmllib.Return) { return "GPU-a", nvmllib.SUCCESS },
		GetMaxMigDeviceCountFunc: func() (int, nvmllib.Return) { return len(all), nvmllib.SUCCESS },
		GetMigDeviceHandleByIndexFunc: func(i int) (nvmllib.Device, nvmllib.Return) {
			if all[i] == nil {
				return nil, nvmllib.ERROR_NOT_FOUND
			}
			return all[i], nvmllib.SUCCESS
		},
	}
	instance := &mock.GpuInstance{GetInfoFunc: func() (nvmllib.GpuInstanceInfo, nvmllib.Return) {
		return nvmllib.GpuInstanceInfo{Id: 2}, nvmllib.SUCCESS
	}}
	for _, row := range []struct {
		name    string
		device  nvmllib.Device
		compute uint32
		uuid    string
		ret     nvmllib.Return
	}{
		{"the GPU", gpu, 0, "MIG-b", nvmllib.SUCCESS},
		{"the GPU, another compute instance", gpu, 1, "MIG-c", nvmllib.SUCCESS},
		{"the GPU, a compute instance that is gone", gpu, 2, "", nvmllib.ERROR_NOT_FOUND},
		{"the MIG device", all[3], 1, "MIG-c", nvmllib.SUCCESS},
	} {
		t.Run(row.name, func(t *testing.T) {
			uuid, ret := nvml.PartitionUUID(nvmllib.ComputeInstanceInfo{Device: row.device, GpuInstance: instance,
				Id: row.compute})
			if uuid != row.uuid || ret != row.ret {
				t.Errorf("got %q and %v, want %q and %v", uuid, ret, row.uuid, row.ret)
			}
		})
	}
}
