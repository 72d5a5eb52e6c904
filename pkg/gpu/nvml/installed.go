// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"slices"
	"strings"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Versions returns the driver versions with an NVML library in the root, sorted. There are several after an incomplete
// update. It is for people; the link libnvidia-ml.so.1 selects the version in use.
func (r DriverRoot) Versions() []string {
	const prefix = "libnvidia-ml.so."
	found, err := r.files().Libraries(prefix + "*.*")
	if err != nil {
		return nil
	}
	var versions []string
	for name := range found {
		versions = append(versions, strings.TrimPrefix(name, prefix))
	}
	slices.Sort(versions)
	return versions
}

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
	nvmllib.ERROR_GPU_NOT_FOUND:           "ERROR_GPU_NOT_FOUND",
	nvmllib.ERROR_LIB_RM_VERSION_MISMATCH: "ERROR_LIB_RM_VERSION_MISMATCH",
	nvmllib.ERROR_UNKNOWN:                 "ERROR_UNKNOWN",
}
