// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"math/bits"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// partitionDevice implements a handle of a partition: NVML's MIG device. If the partition no longer exists, it returns
// ERROR_INVALID_ARGUMENT.
type partitionDevice struct {
	mock.Device
	gpu  *device
	uuid string
}

func newPartition(gpu *device, uuid string) nvml.Device {
	p := &partitionDevice{gpu: gpu, uuid: uuid}
	p.setIdentityCalls()
	p.setUsageCalls()
	guard(&p.Device, gpu.gate, unsupported)
	// The GPU itself answers the calls about its model, through its own gate.
	p.GetBrandFunc = gpu.GetBrand
	p.GetArchitectureFunc = gpu.GetArchitecture
	p.GetCudaComputeCapabilityFunc = gpu.GetCudaComputeCapability
	return p
}

// current returns the partition in its current state.
func (p *partitionDevice) current() (node.Partition, nvml.Return) {
	c, ret := p.gpu.current()
	if ret != nvml.SUCCESS {
		return node.Partition{}, ret
	}
	for _, is := range c.Partitions() {
		if is.Compute.UUID == p.uuid {
			return is, nvml.SUCCESS
		}
	}
	return node.Partition{}, nvml.ERROR_INVALID_ARGUMENT
}

// ofPartition returns a function of the mock that answers from the partition.
func ofPartition[T any](p *partitionDevice, convert func(node.Partition) T) func() (T, nvml.Return) {
	return func() (T, nvml.Return) {
		is, ret := p.current()
		if ret != nvml.SUCCESS {
			var zero T
			return zero, ret
		}
		return convert(is), nvml.SUCCESS
	}
}

// setIdentityCalls sets the calls that identify the partition.
func (p *partitionDevice) setIdentityCalls() {
	p.IsMigDeviceHandleFunc = ofPartition(p, func(node.Partition) bool { return true })
	p.GetUUIDFunc = ofPartition(p, func(is node.Partition) string { return is.Compute.UUID })
	p.GetIndexFunc = ofPartition(p, func(is node.Partition) int { return is.Index })
	p.GetGpuInstanceIdFunc = ofPartition(p, func(is node.Partition) int { return is.Instance.ID })
	p.GetComputeInstanceIdFunc = ofPartition(p, func(is node.Partition) int { return is.Compute.ID })
	p.GetDeviceHandleFromMigDeviceHandleFunc = ofPartition(p, func(node.Partition) nvml.Device { return p.gpu })
	name := ofPartition(p, func(is node.Partition) string { return is.Name })
	p.GetNameFunc = func() (string, nvml.Return) {
		partition, ret := name()
		if ret != nvml.SUCCESS {
			return "", ret
		}
		gpu, ret := value(p.gpu, func(c node.GPU) hwprofile.Answer[string] { return c.Calls.GetName }, same[string])()
		return gpu + " MIG " + partition, ret
	}
}

// setUsageCalls sets the calls about the partition's resources and usage.
func (p *partitionDevice) setUsageCalls() {
	p.GetAttributesFunc = ofPartition(p, attributes)
	p.GetMemoryInfoFunc = ofPartition(p, func(is node.Partition) nvml.Memory {
		m := is.Memory()
		return nvml.Memory{Total: m.Total, Used: m.Used, Free: m.Total - m.Used}
	})
	p.GetMemoryInfo_v2Func = ofPartition(p, func(is node.Partition) nvml.Memory_v2 {
		m := is.Memory()
		v := nvml.Memory_v2{Total: m.Total, Used: m.Used, Free: m.Total - m.Used}
		v.Version = nvml.STRUCT_VERSION(v, 2)
		return v
	})
	p.GetBAR1MemoryInfoFunc = ofPartition(p, bar1Memory)
	p.GetMemoryErrorCounterFunc = func(nvml.MemoryErrorType, nvml.EccCounterType, nvml.MemoryLocation) (uint64,
		nvml.Return) {
		_, ret := p.current()
		return 0, ret
	}
	p.GetComputeRunningProcessesFunc = ofPartition(p, func(is node.Partition) []nvml.ProcessInfo {
		return processInfo(is.Compute.Processes, uint32(is.Instance.ID), uint32(is.Compute.ID))
	})
	p.GetMPSComputeRunningProcessesFunc = p.GetComputeRunningProcessesFunc
	p.GetGraphicsRunningProcessesFunc = ofPartition(p, func(node.Partition) []nvml.ProcessInfo { return nil })
}

// bar1Memory returns the partition's part of the BAR1 window, all of it free. nvidia-smi prints 32767MiB for a
// partition of 20096MiB, and lists no partition without such a part.
func bar1Memory(is node.Partition) nvml.BAR1Memory {
	const mebibyte = 1 << 20
	size := uint64(1)<<bits.Len64(is.Memory().Total-1) - mebibyte
	return nvml.BAR1Memory{Bar1Total: size, Bar1Free: size}
}

func attributes(is node.Partition) nvml.DeviceAttributes {
	return nvml.DeviceAttributes{
		MultiprocessorCount:   uint32(is.ComputeProfile.MultiprocessorCount),
		SharedCopyEngineCount: uint32(is.Profile.CopyEngineCount),
		SharedDecoderCount:    uint32(is.Profile.DecoderCount), SharedEncoderCount: uint32(is.Profile.EncoderCount),
		SharedJpegCount: uint32(is.Profile.JPEGCount), SharedOfaCount: uint32(is.Profile.OFACount),
		GpuInstanceSliceCount:     uint32(is.Profile.SliceCount),
		ComputeInstanceSliceCount: uint32(is.ComputeProfile.SliceCount),
		MemorySizeMB:              is.Profile.MemorySizeMB,
	}
}
