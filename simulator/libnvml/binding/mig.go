// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"fmt"
	"reflect"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// named is a GPU that knows the names of its MIG profiles.
type named interface {
	GpuInstanceProfileInfo_v3(profile int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return)
}

// instanceProfileInfo answers with version 2 or 3 of the struct.
func instanceProfileInfo(d nvml.Device, values []uint64) nvml.Return {
	to := as[nvml.GpuInstanceProfileInfo_v3](values, 2)
	gpu, ok := d.(named)
	switch {
	case to == nil:
		return nvml.ERROR_INVALID_ARGUMENT
	case !ok:
		return nvml.ERROR_NOT_SUPPORTED
	}
	info, ret := gpu.GpuInstanceProfileInfo_v3(int(int32(values[1])))
	if ret != nvml.SUCCESS {
		return ret
	}
	old := as[nvml.GpuInstanceProfileInfo_v2](values, 2)
	switch to.Version {
	case info.Version:
		*to = info
	case nvml.STRUCT_VERSION(*old, 2):
		*old = nvml.GpuInstanceProfileInfo_v2{Version: old.Version, Id: info.Id, SliceCount: info.SliceCount,
			InstanceCount: info.InstanceCount, MultiprocessorCount: info.MultiprocessorCount,
			CopyEngineCount: info.CopyEngineCount, DecoderCount: info.DecoderCount, EncoderCount: info.EncoderCount,
			JpegCount: info.JpegCount, OfaCount: info.OfaCount, MemorySizeMB: info.MemorySizeMB, Name: info.Name}
	default:
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	return nvml.SUCCESS
}

// computeInstanceProfileInfo answers with version 2 or 3 of the struct. Version 3 begins with version 2.
func computeInstanceProfileInfo(h *handles, _ nvml.Interface, values []uint64) nvml.Return {
	object, ok := h.get(values[0], reflect.TypeFor[nvml.GpuInstance]())
	to := as[nvml.ComputeInstanceProfileInfo_v2](values, 3)
	switch {
	case !ok || to == nil:
		return nvml.ERROR_INVALID_ARGUMENT
	case to.Version != nvml.STRUCT_VERSION(*to, 2) &&
		to.Version != nvml.STRUCT_VERSION(nvml.ComputeInstanceProfileInfo_v3{}, 3):
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	instance := object.Interface().(nvml.GpuInstance)
	info, ret := instance.GetComputeInstanceProfileInfo(int(int32(values[1])), int(int32(values[2])))
	if ret != nvml.SUCCESS {
		return ret
	}
	of, ret := profileOf(instance)
	if ret != nvml.SUCCESS {
		return ret
	}
	*to = nvml.ComputeInstanceProfileInfo_v2{Version: to.Version, Id: info.Id, SliceCount: info.SliceCount,
		InstanceCount: info.InstanceCount, MultiprocessorCount: info.MultiprocessorCount,
		SharedCopyEngineCount: info.SharedCopyEngineCount, SharedDecoderCount: info.SharedDecoderCount,
		SharedEncoderCount: info.SharedEncoderCount, SharedJpegCount: info.SharedJpegCount,
		SharedOfaCount: info.SharedOfaCount, Name: of.Name}
	if info.SliceCount < of.SliceCount { // "MIG 1c.3g.40gb" of "MIG 3g.40gb"
		prefix := fmt.Sprintf("MIG %dc.", info.SliceCount)
		for i := range len(prefix) {
			to.Name[i] = int8(prefix[i])
		}
		copy(to.Name[len(prefix):len(to.Name)-1], of.Name[len("MIG "):])
	}
	return nvml.SUCCESS
}

// profileOf returns the profile of the GPU instance, with its name.
func profileOf(instance nvml.GpuInstance) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) {
	is, ret := instance.GetInfo()
	gpu, ok := is.Device.(named)
	if ret != nvml.SUCCESS || !ok {
		return nvml.GpuInstanceProfileInfo_v3{}, ret
	}
	for profile := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		if info, ret := gpu.GpuInstanceProfileInfo_v3(profile); ret == nvml.SUCCESS && info.Id == is.ProfileId {
			return info, nvml.SUCCESS
		}
	}
	return nvml.GpuInstanceProfileInfo_v3{}, nvml.ERROR_NOT_FOUND
}
