// SPDX-License-Identifier: Apache-2.0

package hwprofile

import "maps"

// The constants of nvml.h in profiles, with their values. A test in simulator compares them with go-nvml. This package
// does not import go-nvml, because the simulated nvidia-smi must build without cgo.

// Brand is nvmlBrandType_t.
type Brand int

func (Brand) names() map[string]int {
	return map[string]int{"BRAND_UNKNOWN": 0, "BRAND_QUADRO": 1, "BRAND_TESLA": 2, "BRAND_NVS": 3, "BRAND_GRID": 4,
		"BRAND_GEFORCE": 5, "BRAND_TITAN": 6, "BRAND_NVIDIA_VWS": 10,
		"BRAND_QUADRO_RTX": 12, "BRAND_NVIDIA_RTX": 13, "BRAND_NVIDIA": 14,
		"BRAND_GEFORCE_RTX": 15, "BRAND_TITAN_RTX": 16}
}

// Virtual reports whether the brand is one of virtual GPUs (nvml.h: NVML_BRAND_NVIDIA_VAPPS and those after it).
func (b Brand) Virtual() bool { return b >= 7 && b <= 11 }

// Architecture is nvmlDeviceArchitecture_t.
type Architecture int

func (Architecture) names() map[string]int {
	return map[string]int{"DEVICE_ARCH_KEPLER": 2, "DEVICE_ARCH_MAXWELL": 3, "DEVICE_ARCH_PASCAL": 4,
		"DEVICE_ARCH_VOLTA":  5,
		"DEVICE_ARCH_TURING": 6, "DEVICE_ARCH_AMPERE": 7, "DEVICE_ARCH_ADA": 8, "DEVICE_ARCH_HOPPER": 9,
		"DEVICE_ARCH_BLACKWELL": 10}
}

// Switch is nvmlEnableState_t.
type Switch int

// The states of a switch.
const (
	Disabled Switch = 0
	Enabled  Switch = 1
)

func (Switch) names() map[string]int {
	return map[string]int{"FEATURE_DISABLED": 0, "FEATURE_ENABLED": 1}
}

// Virtualization is nvmlGpuVirtualizationMode_t.
type Virtualization int

func (Virtualization) names() map[string]int {
	return map[string]int{"GPU_VIRTUALIZATION_MODE_NONE": 0, "GPU_VIRTUALIZATION_MODE_PASSTHROUGH": 1,
		"GPU_VIRTUALIZATION_MODE_VGPU": 2, "GPU_VIRTUALIZATION_MODE_HOST_VGPU": 3,
		"GPU_VIRTUALIZATION_MODE_HOST_VSGA": 4}
}

// AddressingMode is nvmlDeviceAddressingModeType_t.
type AddressingMode int

func (AddressingMode) names() map[string]int {
	return map[string]int{"DEVICE_ADDRESSING_MODE_NONE": 0, "DEVICE_ADDRESSING_MODE_HMM": 1,
		"DEVICE_ADDRESSING_MODE_ATS": 2}
}

// ComputeMode is nvmlComputeMode_t. The zero value is the default.
type ComputeMode int

// ComputeModeProhibited admits no CUDA program.
const ComputeModeProhibited ComputeMode = 2

// ComputeModeExclusiveProcess allows one process at a time to have a context.
const ComputeModeExclusiveProcess ComputeMode = 3

func (ComputeMode) names() map[string]int {
	return map[string]int{"COMPUTEMODE_DEFAULT": 0, "COMPUTEMODE_PROHIBITED": 2, "COMPUTEMODE_EXCLUSIVE_PROCESS": 3}
}

// TimeSlice is how long a process may use the GPU while others wait, as numbered by nvidia-smi compute-policy. The zero
// value is the default. NVML has no call for it.
type TimeSlice int

func (TimeSlice) names() map[string]int {
	return map[string]int{"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
}

// Clock is nvmlClockType_t.
type Clock int

// The clocks that the simulated nvidia-smi shows.
const (
	ClockSM     Clock = 1
	ClockMemory Clock = 2
)

func (Clock) names() map[string]int {
	return map[string]int{"CLOCK_GRAPHICS": 0, "CLOCK_SM": 1, "CLOCK_MEM": 2, "CLOCK_VIDEO": 3}
}

// Sensor is nvmlTemperatureSensors_t.
type Sensor int

func (Sensor) names() map[string]int { return map[string]int{"TEMPERATURE_GPU": 0} }

// Performance is nvmlPstates_t.
type Performance int

func (Performance) names() map[string]int {
	return map[string]int{"PSTATE_0": 0, "PSTATE_1": 1, "PSTATE_2": 2, "PSTATE_3": 3, "PSTATE_4": 4, "PSTATE_5": 5,
		"PSTATE_6": 6,
		"PSTATE_7": 7, "PSTATE_8": 8, "PSTATE_9": 9, "PSTATE_10": 10, "PSTATE_11": 11, "PSTATE_12": 12, "PSTATE_13": 13,
		"PSTATE_14": 14,
		"PSTATE_15": 15}
}

// LinkVersion is nvmlNvlinkVersion_t.
type LinkVersion int

func (LinkVersion) names() map[string]int {
	return map[string]int{"NVLINK_VERSION_1_0": 1, "NVLINK_VERSION_2_0": 2, "NVLINK_VERSION_2_2": 3,
		"NVLINK_VERSION_3_0": 4,
		"NVLINK_VERSION_3_1": 5, "NVLINK_VERSION_4_0": 6, "NVLINK_VERSION_5_0": 7}
}

// LinkEnd is nvmlIntNvLinkDeviceType_t: what a link leads to.
type LinkEnd int

// LinkEndSwitch is an NVSwitch at the other end.
const LinkEndSwitch LinkEnd = 2

func (LinkEnd) names() map[string]int {
	return map[string]int{"NVLINK_DEVICE_TYPE_GPU": 0, "NVLINK_DEVICE_TYPE_IBMNPU": 1, "NVLINK_DEVICE_TYPE_SWITCH": 2}
}

// FabricState is nvmlGpuFabricState_t.
type FabricState int

func (FabricState) names() map[string]int {
	return map[string]int{"GPU_FABRIC_STATE_NOT_SUPPORTED": 0, "GPU_FABRIC_STATE_NOT_STARTED": 1,
		"GPU_FABRIC_STATE_IN_PROGRESS": 2,
		"GPU_FABRIC_STATE_COMPLETED":   3}
}

// Proximity is nvmlGpuTopologyLevel_t: what two GPUs have in common on the way to the CPU.
type Proximity int

// Topology levels in a profile.
const (
	ProximitySingle     Proximity = 10
	ProximityMultiple   Proximity = 20
	ProximityHostBridge Proximity = 30
	ProximityNode       Proximity = 40
	ProximitySystem     Proximity = 50
)

func (Proximity) names() map[string]int {
	return map[string]int{"TOPOLOGY_INTERNAL": 0, "TOPOLOGY_SINGLE": 10, "TOPOLOGY_MULTIPLE": 20,
		"TOPOLOGY_HOSTBRIDGE": 30, "TOPOLOGY_NODE": 40, "TOPOLOGY_SYSTEM": 50}
}

// Constants returns every constant of profiles with its value.
func Constants() map[string]int {
	out := map[string]int{}
	for _, t := range []named{Brand(0), Architecture(0), Switch(0), AddressingMode(0), ComputeMode(0), Clock(0),
		Sensor(0), Performance(0), LinkVersion(0), LinkEnd(0), FabricState(0), Proximity(0), Virtualization(0)} {
		maps.Copy(out, t.names())
	}
	maps.Copy(out, errorNumbers)
	return out
}

// Error is the name of an NVML error, "" for success.
type Error string

// Errors that the simulation returns itself.
const (
	NotSupported Error = "ERROR_NOT_SUPPORTED"
	LostGPU      Error = "ERROR_GPU_IS_LOST"
	InUse        Error = "ERROR_IN_USE"
	// DriverNotLoaded means that NVML is there without its driver.
	DriverNotLoaded Error = "ERROR_DRIVER_NOT_LOADED"

	InvalidArgument       Error = "ERROR_INVALID_ARGUMENT"
	NotFound              Error = "ERROR_NOT_FOUND"
	InsufficientResources Error = "ERROR_INSUFFICIENT_RESOURCES"
)

// Number returns the nvmlReturn_t of the error, 0 for success.
func (e Error) Number() int { return errorNumbers[string(e)] }

// ErrorNumbered returns the error with that nvmlReturn_t: "" for success, ERROR_UNKNOWN for an unknown number.
func ErrorNumbered(number int) Error {
	if number == 0 {
		return ""
	}
	for name, n := range errorNumbers {
		if n == number {
			return Error(name)
		}
	}
	return "ERROR_UNKNOWN"
}

var errorNumbers = map[string]int{
	"ERROR_UNINITIALIZED": 1, "ERROR_INVALID_ARGUMENT": 2, "ERROR_NOT_SUPPORTED": 3, "ERROR_NO_PERMISSION": 4,
	"ERROR_ALREADY_INITIALIZED": 5, "ERROR_NOT_FOUND": 6, "ERROR_INSUFFICIENT_SIZE": 7, "ERROR_INSUFFICIENT_POWER": 8,
	"ERROR_DRIVER_NOT_LOADED": 9, "ERROR_TIMEOUT": 10, "ERROR_IRQ_ISSUE": 11, "ERROR_LIBRARY_NOT_FOUND": 12,
	"ERROR_FUNCTION_NOT_FOUND": 13, "ERROR_CORRUPTED_INFOROM": 14, "ERROR_GPU_IS_LOST": 15, "ERROR_RESET_REQUIRED": 16,
	"ERROR_OPERATING_SYSTEM": 17, "ERROR_LIB_RM_VERSION_MISMATCH": 18, "ERROR_IN_USE": 19, "ERROR_MEMORY": 20,
	"ERROR_NO_DATA":                21,
	"ERROR_VGPU_ECC_NOT_SUPPORTED": 22, "ERROR_INSUFFICIENT_RESOURCES": 23, "ERROR_FREQ_NOT_SUPPORTED": 24,
	"ERROR_ARGUMENT_VERSION_MISMATCH": 25, "ERROR_DEPRECATED": 26, "ERROR_NOT_READY": 27, "ERROR_GPU_NOT_FOUND": 28,
	"ERROR_INVALID_STATE": 29, "ERROR_RESET_TYPE_NOT_SUPPORTED": 30, "ERROR_UNKNOWN": 999,
}
