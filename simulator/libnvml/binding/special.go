// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"reflect"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// special are the functions whose parameters in C are not in the order of go-nvml's, or that go-nvml calls by way of a
// handler, which a simulation cannot return.
var special = map[string]caller{
	"DeviceGetPciInfo":                          oldPciInfo,
	"DeviceGetPciInfo_v2":                       oldPciInfo,
	"DeviceGetMemoryAffinity":                   onDevice(memoryAffinity),
	"DeviceGetProcessUtilization":               onDevice(processUtilization),
	"DeviceGetTemperatureV":                     onDevice(temperature),
	"DeviceGetGpuFabricInfoV":                   onDevice(fabricInfo),
	"GpuInstanceGetComputeInstanceProfileInfoV": computeInstanceProfileInfo,
	"EventSetWait":                              waitForEvent(firstEventSize),
	"EventSetWait_v2":                           waitForEvent(eventSize),
	"DeviceGetGpuInstanceProfileInfoV":          onDevice(instanceProfileInfo),
}

// onDevice returns a function whose first parameter is a GPU and whose others are as the given one expects them.
func onDevice(f func(d nvml.Device, values []uint64) nvml.Return) caller {
	return func(h *handles, _ nvml.Interface, values []uint64) nvml.Return {
		d, ok := h.get(values[0], reflect.TypeFor[nvml.Device]())
		if !ok {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		return f(d.Interface().(nvml.Device), values)
	}
}

// as returns the parameter as a pointer to T, or nil.
func as[T any](values []uint64, at int) *T { return (*T)(pointer(values, at)) }

// oldPciInfo is the function before the struct got longer: it writes only the fields up to pciSubSystemId.
func oldPciInfo(h *handles, _ nvml.Interface, values []uint64) nvml.Return {
	return onDevice(func(d nvml.Device, values []uint64) nvml.Return {
		info, ret := d.GetPciInfo()
		if ret != nvml.SUCCESS {
			return ret
		}
		to := as[byte](values, 1)
		if to == nil {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		size := unsafe.Offsetof(info.PciSubSystemId) + unsafe.Sizeof(info.PciSubSystemId)
		copy(unsafe.Slice(to, size), unsafe.Slice((*byte)(unsafe.Pointer(&info)), size))
		return nvml.SUCCESS
	})(h, nil, values)
}

// memoryAffinity takes the number of words of the set; go-nvml takes the number of NUMA nodes.
func memoryAffinity(d nvml.Device, values []uint64) nvml.Return {
	const bits = 64
	words, to, scope := int(uint32(values[1])), as[uint](values, 2), nvml.AffinityScope(values[3])
	if to == nil || words == 0 {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	set, ret := d.GetMemoryAffinity(words*bits, scope)
	copy(unsafe.Slice(to, words), set)
	return ret
}

// processUtilization takes the time of the last sample after the results.
func processUtilization(d nvml.Device, values []uint64) nvml.Return {
	samples, ret := d.GetProcessUtilization(values[3])
	if ret != nvml.SUCCESS {
		return ret
	}
	p := parameters{sizes: []uint32{intSize, uint32(unsafe.Sizeof(nvml.ProcessUtilizationSample{}))}}
	if values[2] == 0 {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	return p.output(reflect.TypeOf(samples))(nil, []uint64{values[2], values[1]}, reflect.ValueOf(samples))
}

// The sizes of an event: its device, type and data, and since version 2 also the instances.
const (
	firstEventSize = 24
	eventSize      = 32
)

// waitForEvent takes the time to wait after the result.
func waitForEvent(size uintptr) caller {
	return func(h *handles, _ nvml.Interface, values []uint64) nvml.Return {
		set, ok := h.get(values[0], reflect.TypeFor[nvml.EventSet]())
		if !ok || values[1] == 0 {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		event, ret := set.Interface().(nvml.EventSet).Wait(uint32(values[2]))
		if ret != nvml.SUCCESS {
			return ret
		}
		return write(h, pointer(values, 1), size, reflect.ValueOf(event))
	}
}

func temperature(d nvml.Device, values []uint64) nvml.Return {
	to := as[nvml.Temperature](values, 1)
	switch {
	case to == nil:
		return nvml.ERROR_INVALID_ARGUMENT
	case to.Version != nvml.STRUCT_VERSION(*to, 1):
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	degrees, ret := d.GetTemperature(nvml.TemperatureSensors(to.SensorType))
	if ret == nvml.SUCCESS {
		to.Temperature = int32(degrees)
	}
	return ret
}

// fabricInfo answers with version 2 or 3 of the struct. Version 3 begins with version 2; then follows the summary.
func fabricInfo(d nvml.Device, values []uint64) nvml.Return {
	to := as[nvml.GpuFabricInfo_v2](values, 1)
	switch {
	case to == nil:
		return nvml.ERROR_INVALID_ARGUMENT
	case to.Version != nvml.STRUCT_VERSION(*to, 2) && to.Version != nvml.STRUCT_VERSION(nvml.GpuFabricInfo_v3{}, 3):
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	info, ret := d.GetGpuFabricInfo()
	if ret != nvml.SUCCESS {
		return ret
	}
	health, ret := d.GetGpuFabricInfo_v4()
	if ret != nvml.SUCCESS {
		return ret
	}
	newest := to.Version == nvml.STRUCT_VERSION(nvml.GpuFabricInfo_v3{}, 3)
	*to = nvml.GpuFabricInfo_v2{Version: to.Version, ClusterUuid: info.ClusterUuid, Status: info.Status,
		CliqueId: info.CliqueId, State: info.State, HealthMask: health.HealthMask}
	if newest {
		as[nvml.GpuFabricInfo_v3](values, 1).HealthSummary = health.HealthSummary
	}
	return nvml.SUCCESS
}
