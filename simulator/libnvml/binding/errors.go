// SPDX-License-Identifier: Apache-2.0

package binding

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// errorStrings are the texts of NVIDIA's library, by error code. A test compares them.
var errorStrings = []string{
	nvml.SUCCESS:                         "Success",
	nvml.ERROR_UNINITIALIZED:             "Uninitialized",
	nvml.ERROR_INVALID_ARGUMENT:          "Invalid Argument",
	nvml.ERROR_NOT_SUPPORTED:             "Not Supported",
	nvml.ERROR_NO_PERMISSION:             "Insufficient Permissions",
	nvml.ERROR_ALREADY_INITIALIZED:       "Already Initialized",
	nvml.ERROR_NOT_FOUND:                 "Not Found",
	nvml.ERROR_INSUFFICIENT_SIZE:         "Insufficient Size",
	nvml.ERROR_INSUFFICIENT_POWER:        "Insufficient External Power",
	nvml.ERROR_DRIVER_NOT_LOADED:         "Driver Not Loaded",
	nvml.ERROR_TIMEOUT:                   "Timeout",
	nvml.ERROR_IRQ_ISSUE:                 "Interrupt Request Issue",
	nvml.ERROR_LIBRARY_NOT_FOUND:         "NVML Shared Library Not Found",
	nvml.ERROR_FUNCTION_NOT_FOUND:        "Function Not Found",
	nvml.ERROR_CORRUPTED_INFOROM:         "Corrupted infoROM",
	nvml.ERROR_GPU_IS_LOST:               "GPU is lost",
	nvml.ERROR_RESET_REQUIRED:            "GPU requires reset",
	nvml.ERROR_OPERATING_SYSTEM:          "GPU access blocked by the operating system",
	nvml.ERROR_LIB_RM_VERSION_MISMATCH:   "Driver/library version mismatch",
	nvml.ERROR_IN_USE:                    "In use by another client",
	nvml.ERROR_MEMORY:                    "Insufficient Memory",
	nvml.ERROR_NO_DATA:                   "No data",
	nvml.ERROR_VGPU_ECC_NOT_SUPPORTED:    "vGPU ECC not supported",
	nvml.ERROR_INSUFFICIENT_RESOURCES:    "Insufficient Resources",
	nvml.ERROR_FREQ_NOT_SUPPORTED:        "Invalid Frequency",
	nvml.ERROR_ARGUMENT_VERSION_MISMATCH: "Argument version mismatch",
	nvml.ERROR_DEPRECATED:                "Requested functionality has been deprecated",
	nvml.ERROR_NOT_READY:                 "System is not in ready state",
	nvml.ERROR_GPU_NOT_FOUND:             "No supported GPUs were found",
	nvml.ERROR_INVALID_STATE:             "Resource not in correct state to perform requested operation",
}

// ErrorString returns the text for the error code.
func ErrorString(code nvml.Return) string {
	if code < 0 || int(code) >= len(errorStrings) {
		return "Unknown Error"
	}
	return errorStrings[code]
}
