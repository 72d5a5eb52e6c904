// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Cgroup limits the memory of a container in NVIDIA's driver (R615 and newer, cgroup v2). NVIDIA's hook
// apply-cuda-memory-limits reads the limit from a variable. Without a second variable it reserves as much as the limit,
// and a reservation stays in the control groups above the container when the container ends.
type Cgroup struct {
	Memory uint64 `json:"memory,omitempty"` // bytes; 0: no limit
}

func (c Cgroup) name() string { return ", cgroup limits" }

func (c Cgroup) limits() []string {
	if c.Memory == 0 {
		return nil
	}
	return []string{fmt.Sprintf("NVIDIA_GPU_MEMORY_LIMIT=%d", c.Memory/mib), "NVIDIA_GPU_MEMORY_REQUEST=0"}
}

func (c Cgroup) access(h Host) (gpu.Access, error) {
	access, err := h.MemoryLimit()
	access.Env = append(access.Env, c.limits()...)
	return access, err
}
