// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"fmt"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// memoryLimitsHook limits GPU memory by a variable that any container can set, so it is only used for limits of claims.
const memoryLimitsHook = "apply-cuda-memory-limits"

// MemoryLimit returns the hook that makes NVIDIA's driver limit a container's memory on this GPU to
// NVIDIA_GPU_MEMORY_LIMIT, in MiB.
func (t *Toolkit) MemoryLimit(d gpu.Device) (gpu.Access, error) {
	if why := d.NoMemoryLimit(); why != "" {
		return gpu.Access{}, fmt.Errorf("%s: no memory limits by cgroup", why)
	}
	return gpu.Access{Hooks: []gpu.Hook{{Name: "createRuntime", Path: t.HookPath, Args: []string{
		"nvidia-cdi-hook", memoryLimitsHook, "--driver-root", t.Driver.Host, "--gpu-id", string(d.UUID)}}}}, nil
}
