// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Code returns the name of NVML's error in err, "ERROR_GPU_IS_LOST", or "" if there is none.
func Code(err error) string {
	var ret nvmllib.Return
	if !errors.As(err, &ret) || ret == nvmllib.SUCCESS {
		return ""
	}
	if name, ok := codes[ret]; ok {
		return name
	}
	return codes[nvmllib.ERROR_UNKNOWN]
}

// codes are the errors that matter to administrators.
var codes = map[nvmllib.Return]string{
	nvmllib.ERROR_NOT_SUPPORTED:           "ERROR_NOT_SUPPORTED",
	nvmllib.ERROR_NO_PERMISSION:           "ERROR_NO_PERMISSION",
	nvmllib.ERROR_DRIVER_NOT_LOADED:       "ERROR_DRIVER_NOT_LOADED",
	nvmllib.ERROR_LIBRARY_NOT_FOUND:       "ERROR_LIBRARY_NOT_FOUND",
	nvmllib.ERROR_GPU_IS_LOST:             "ERROR_GPU_IS_LOST",
	nvmllib.ERROR_RESET_REQUIRED:          "ERROR_RESET_REQUIRED",
	nvmllib.ERROR_GPU_NOT_FOUND:           "ERROR_GPU_NOT_FOUND",
	nvmllib.ERROR_LIB_RM_VERSION_MISMATCH: "ERROR_LIB_RM_VERSION_MISMATCH",
	nvmllib.ERROR_UNKNOWN:                 "ERROR_UNKNOWN",
}
