// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"fmt"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
)

func TestMemoryLimit(t *testing.T) {
	for _, row := range []struct {
		name    string
		driver  string
		cgroup2 bool
		want    string
	}{
		{"a driver that can", "615.10", true, "[{createRuntime /h/nvidia-cdi-hook [nvidia-cdi-hook " +
			"apply-cuda-memory-limits --driver-root /r --gpu-id GPU-1] []}] <nil>"},
		{"a driver that cannot", "610.43.02", true,
			"[] driver 610.43.02 is older than R615: no memory limits by cgroup"},
		{"control groups that cannot", "615.10", false,
			"[] the machine has no cgroup v2: no memory limits by cgroup"},
		{"a driver that nobody knows", "", true, "[] driver \"\" is of no known branch: no memory limits by cgroup"},
	} {
		kit := &Toolkit{Driver: driverroot.Root{Host: "/r", Here: "/here"}, HookPath: "/h/nvidia-cdi-hook"}
		access, err := kit.MemoryLimit(gpu.Device{UUID: "GPU-1", DriverVersion: row.driver, CgroupV1: !row.cgroup2})
		if got := fmt.Sprint(access.Hooks, " ", err); got != row.want {
			t.Errorf("%s:\ngot  %s\nwant %s", row.name, got, row.want)
		}
	}
}
