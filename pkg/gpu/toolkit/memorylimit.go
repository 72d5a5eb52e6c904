// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
)

// ErrNoMemoryLimit means that NVIDIA's driver cannot limit the memory of containers on this machine. The message says
// why.
var ErrNoMemoryLimit = errors.New("no memory limits by cgroup")

// memoryLimitsHook limits GPU memory by a variable that any container can set, so it is only used for limits of claims.
const memoryLimitsHook = "apply-cuda-memory-limits"

// memoryLimitDriver is the first driver branch that limits memory by cgroup (NVML change log, CUDA 13.4).
const memoryLimitDriver = 615

// cgroupRoot is the mount point of cgroups.
const cgroupRoot = "/sys/fs/cgroup"

// MemoryLimit returns the hook that makes NVIDIA's driver limit a container's memory on this GPU to
// NVIDIA_GPU_MEMORY_LIMIT, in MiB. Error: ErrNoMemoryLimit.
func (t *Toolkit) MemoryLimit(d gpu.Device) (gpu.Access, error) {
	return memoryLimit(d, t.Driver, t.HookPath, isCgroup2(cgroupRoot))
}

func memoryLimit(d gpu.Device, root driverroot.Root, hookPath string, cgroup2 bool) (gpu.Access, error) {
	branch, _, _ := strings.Cut(d.DriverVersion, ".")
	n, err := strconv.Atoi(branch)
	if err != nil {
		return gpu.Access{}, fmt.Errorf("driver %q is of no known branch: %w", d.DriverVersion, ErrNoMemoryLimit)
	}
	if n < memoryLimitDriver {
		return gpu.Access{}, fmt.Errorf("driver %s is older than R%d: %w", d.DriverVersion, memoryLimitDriver,
			ErrNoMemoryLimit)
	}
	if !cgroup2 {
		return gpu.Access{}, fmt.Errorf("%s is not cgroup v2: %w", cgroupRoot, ErrNoMemoryLimit)
	}
	return gpu.Access{Hooks: []gpu.Hook{{Name: "createRuntime", Path: hookPath, Args: []string{
		"nvidia-cdi-hook", memoryLimitsHook, "--driver-root", root.Host, "--gpu-id", string(d.UUID)}}}}, nil
}

func isCgroup2(root string) bool {
	var st unix.Statfs_t
	return unix.Statfs(root, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}
