// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Versions are the versions of the driver whose management library is in the root, in order: more than one when an update has left
// something behind. It is for people: which one is used, the link libnvidia-ml.so.1 says.
func (r DriverRoot) Versions() []string {
	var out []string
	for _, dir := range libraryDirs {
		files, err := filepath.Glob(filepath.Join(r.Here, dir, "libnvidia-ml.so.*.*"))
		if err != nil {
			continue
		}
		for _, f := range files {
			out = append(out, strings.TrimPrefix(filepath.Base(f), "libnvidia-ml.so."))
		}
	}
	slices.Sort(out)
	return slices.Compact(out) // the same folder may have two names
}

// Code is the name of NVML's error that err is, "ERROR_GPU_IS_LOST": "" when it is none of NVML's.
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

// codes are the errors that mean something to whoever looks after a machine.
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
