// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// constants are go-nvml's, under the names of nvml.h.
var constants = map[string]int{
	"BRAND_UNKNOWN":                       int(nvml.BRAND_UNKNOWN),
	"BRAND_QUADRO":                        int(nvml.BRAND_QUADRO),
	"BRAND_TESLA":                         int(nvml.BRAND_TESLA),
	"BRAND_NVIDIA_VWS":                    int(nvml.BRAND_NVIDIA_VWS),
	"GPU_VIRTUALIZATION_MODE_NONE":        int(nvml.GPU_VIRTUALIZATION_MODE_NONE),
	"GPU_VIRTUALIZATION_MODE_PASSTHROUGH": int(nvml.GPU_VIRTUALIZATION_MODE_PASSTHROUGH),
	"GPU_VIRTUALIZATION_MODE_VGPU":        int(nvml.GPU_VIRTUALIZATION_MODE_VGPU),
	"GPU_VIRTUALIZATION_MODE_HOST_VGPU":   int(nvml.GPU_VIRTUALIZATION_MODE_HOST_VGPU),
	"GPU_VIRTUALIZATION_MODE_HOST_VSGA":   int(nvml.GPU_VIRTUALIZATION_MODE_HOST_VSGA),
	"BRAND_NVS":                           int(nvml.BRAND_NVS),
	"BRAND_GRID":                          int(nvml.BRAND_GRID),
	"BRAND_GEFORCE":                       int(nvml.BRAND_GEFORCE),
	"BRAND_TITAN":                         int(nvml.BRAND_TITAN),
	"BRAND_QUADRO_RTX":                    int(nvml.BRAND_QUADRO_RTX),
	"BRAND_NVIDIA_RTX":                    int(nvml.BRAND_NVIDIA_RTX),
	"BRAND_NVIDIA":                        int(nvml.BRAND_NVIDIA),
	"BRAND_GEFORCE_RTX":                   int(nvml.BRAND_GEFORCE_RTX),
	"BRAND_TITAN_RTX":                     int(nvml.BRAND_TITAN_RTX),
	"DEVICE_ARCH_KEPLER":                  int(nvml.DEVICE_ARCH_KEPLER),
	"DEVICE_ARCH_MAXWELL":                 int(nvml.DEVICE_ARCH_MAXWELL),
	"DEVICE_ARCH_PASCAL":                  int(nvml.DEVICE_ARCH_PASCAL),
	"DEVICE_ARCH_VOLTA":                   int(nvml.DEVICE_ARCH_VOLTA),
	"DEVICE_ARCH_TURING":                  int(nvml.DEVICE_ARCH_TURING),
	"DEVICE_ARCH_AMPERE":                  int(nvml.DEVICE_ARCH_AMPERE),
	"DEVICE_ARCH_ADA":                     int(nvml.DEVICE_ARCH_ADA),
	"DEVICE_ARCH_HOPPER":                  int(nvml.DEVICE_ARCH_HOPPER),
	"DEVICE_ARCH_BLACKWELL":               int(nvml.DEVICE_ARCH_BLACKWELL),
	"FEATURE_DISABLED":                    int(nvml.FEATURE_DISABLED),
	"FEATURE_ENABLED":                     int(nvml.FEATURE_ENABLED),
	"DEVICE_ADDRESSING_MODE_NONE":         int(nvml.DEVICE_ADDRESSING_MODE_NONE),
	"DEVICE_ADDRESSING_MODE_HMM":          int(nvml.DEVICE_ADDRESSING_MODE_HMM),
	"DEVICE_ADDRESSING_MODE_ATS":          int(nvml.DEVICE_ADDRESSING_MODE_ATS),
	"COMPUTEMODE_DEFAULT":                 int(nvml.COMPUTEMODE_DEFAULT),
	"COMPUTEMODE_PROHIBITED":              int(nvml.COMPUTEMODE_PROHIBITED),
	"COMPUTEMODE_EXCLUSIVE_PROCESS":       int(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS),
	"CLOCK_GRAPHICS":                      int(nvml.CLOCK_GRAPHICS),
	"CLOCK_SM":                            int(nvml.CLOCK_SM),
	"CLOCK_MEM":                           int(nvml.CLOCK_MEM),
	"CLOCK_VIDEO":                         int(nvml.CLOCK_VIDEO),
	"TEMPERATURE_GPU":                     int(nvml.TEMPERATURE_GPU),
	"PSTATE_0":                            int(nvml.PSTATE_0),
	"PSTATE_1":                            int(nvml.PSTATE_1),
	"PSTATE_2":                            int(nvml.PSTATE_2),
	"PSTATE_3":                            int(nvml.PSTATE_3),
	"PSTATE_4":                            int(nvml.PSTATE_4),
	"PSTATE_5":                            int(nvml.PSTATE_5),
	"PSTATE_6":                            int(nvml.PSTATE_6),
	"PSTATE_7":                            int(nvml.PSTATE_7),
	"PSTATE_8":                            int(nvml.PSTATE_8),
	"PSTATE_9":                            int(nvml.PSTATE_9),
	"PSTATE_10":                           int(nvml.PSTATE_10),
	"PSTATE_11":                           int(nvml.PSTATE_11),
	"PSTATE_12":                           int(nvml.PSTATE_12),
	"PSTATE_13":                           int(nvml.PSTATE_13),
	"PSTATE_14":                           int(nvml.PSTATE_14),
	"PSTATE_15":                           int(nvml.PSTATE_15),
	"NVLINK_VERSION_1_0":                  int(nvml.NVLINK_VERSION_1_0),
	"NVLINK_VERSION_2_0":                  int(nvml.NVLINK_VERSION_2_0),
	"NVLINK_VERSION_2_2":                  int(nvml.NVLINK_VERSION_2_2),
	"NVLINK_VERSION_3_0":                  int(nvml.NVLINK_VERSION_3_0),
	"NVLINK_VERSION_3_1":                  int(nvml.NVLINK_VERSION_3_1),
	"NVLINK_VERSION_4_0":                  int(nvml.NVLINK_VERSION_4_0),
	"NVLINK_VERSION_5_0":                  int(nvml.NVLINK_VERSION_5_0),
	"NVLINK_DEVICE_TYPE_GPU":              int(nvml.NVLINK_DEVICE_TYPE_GPU),
	"NVLINK_DEVICE_TYPE_IBMNPU":           int(nvml.NVLINK_DEVICE_TYPE_IBMNPU),
	"NVLINK_DEVICE_TYPE_SWITCH":           int(nvml.NVLINK_DEVICE_TYPE_SWITCH),
	"GPU_FABRIC_STATE_NOT_SUPPORTED":      int(nvml.GPU_FABRIC_STATE_NOT_SUPPORTED),
	"GPU_FABRIC_STATE_NOT_STARTED":        int(nvml.GPU_FABRIC_STATE_NOT_STARTED),
	"GPU_FABRIC_STATE_IN_PROGRESS":        int(nvml.GPU_FABRIC_STATE_IN_PROGRESS),
	"GPU_FABRIC_STATE_COMPLETED":          int(nvml.GPU_FABRIC_STATE_COMPLETED),
	"TOPOLOGY_INTERNAL":                   int(nvml.TOPOLOGY_INTERNAL),
	"TOPOLOGY_SINGLE":                     int(nvml.TOPOLOGY_SINGLE),
	"TOPOLOGY_MULTIPLE":                   int(nvml.TOPOLOGY_MULTIPLE),
	"TOPOLOGY_HOSTBRIDGE":                 int(nvml.TOPOLOGY_HOSTBRIDGE),
	"TOPOLOGY_NODE":                       int(nvml.TOPOLOGY_NODE),
	"TOPOLOGY_SYSTEM":                     int(nvml.TOPOLOGY_SYSTEM),
	"ERROR_NOT_SUPPORTED":                 int(nvml.ERROR_NOT_SUPPORTED),
	"ERROR_GPU_IS_LOST":                   int(nvml.ERROR_GPU_IS_LOST),
	"ERROR_UNINITIALIZED":                 int(nvml.ERROR_UNINITIALIZED),
	"ERROR_INVALID_ARGUMENT":              int(nvml.ERROR_INVALID_ARGUMENT),
	"ERROR_NO_PERMISSION":                 int(nvml.ERROR_NO_PERMISSION),
	"ERROR_ALREADY_INITIALIZED":           int(nvml.ERROR_ALREADY_INITIALIZED),
	"ERROR_NOT_FOUND":                     int(nvml.ERROR_NOT_FOUND),
	"ERROR_INSUFFICIENT_SIZE":             int(nvml.ERROR_INSUFFICIENT_SIZE),
	"ERROR_INSUFFICIENT_POWER":            int(nvml.ERROR_INSUFFICIENT_POWER),
	"ERROR_DRIVER_NOT_LOADED":             int(nvml.ERROR_DRIVER_NOT_LOADED),
	"ERROR_TIMEOUT":                       int(nvml.ERROR_TIMEOUT),
	"ERROR_IRQ_ISSUE":                     int(nvml.ERROR_IRQ_ISSUE),
	"ERROR_LIBRARY_NOT_FOUND":             int(nvml.ERROR_LIBRARY_NOT_FOUND),
	"ERROR_FUNCTION_NOT_FOUND":            int(nvml.ERROR_FUNCTION_NOT_FOUND),
	"ERROR_CORRUPTED_INFOROM":             int(nvml.ERROR_CORRUPTED_INFOROM),
	"ERROR_RESET_REQUIRED":                int(nvml.ERROR_RESET_REQUIRED),
	"ERROR_OPERATING_SYSTEM":              int(nvml.ERROR_OPERATING_SYSTEM),
	"ERROR_LIB_RM_VERSION_MISMATCH":       int(nvml.ERROR_LIB_RM_VERSION_MISMATCH),
	"ERROR_IN_USE":                        int(nvml.ERROR_IN_USE),
	"ERROR_MEMORY":                        int(nvml.ERROR_MEMORY),
	"ERROR_NO_DATA":                       int(nvml.ERROR_NO_DATA),
	"ERROR_VGPU_ECC_NOT_SUPPORTED":        int(nvml.ERROR_VGPU_ECC_NOT_SUPPORTED),
	"ERROR_INSUFFICIENT_RESOURCES":        int(nvml.ERROR_INSUFFICIENT_RESOURCES),
	"ERROR_FREQ_NOT_SUPPORTED":            int(nvml.ERROR_FREQ_NOT_SUPPORTED),
	"ERROR_ARGUMENT_VERSION_MISMATCH":     int(nvml.ERROR_ARGUMENT_VERSION_MISMATCH),
	"ERROR_DEPRECATED":                    int(nvml.ERROR_DEPRECATED),
	"ERROR_NOT_READY":                     int(nvml.ERROR_NOT_READY),
	"ERROR_GPU_NOT_FOUND":                 int(nvml.ERROR_GPU_NOT_FOUND),
	"ERROR_INVALID_STATE":                 int(nvml.ERROR_INVALID_STATE),
	"ERROR_RESET_TYPE_NOT_SUPPORTED":      int(nvml.ERROR_RESET_TYPE_NOT_SUPPORTED),
	"ERROR_UNKNOWN":                       int(nvml.ERROR_UNKNOWN),
}

func TestConstantsMatchNVML(t *testing.T) {
	if got := hwprofile.Constants(); !reflect.DeepEqual(got, constants) {
		t.Errorf("constants:\n%v\nwant:\n%v", got, constants)
	}
}

func TestCallsMatchGoNVML(t *testing.T) {
	device := reflect.TypeFor[nvml.Device]()
	var want strings.Builder
	for i := range device.NumMethod() {
		want.WriteString(device.Method(i).Name + "\n")
	}
	got, err := os.ReadFile("../pkg/hwprofile/calls.txt")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		t.Error("node/calls.txt does not list the methods of go-nvml's Device, one on a line, in order")
	}
}
