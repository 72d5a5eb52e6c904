// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Hook limits a container by a library that intercepts its CUDA calls. The variables are those of HAMi-core
// (github.com/Project-HAMi/HAMi-core, README).
type Hook struct {
	Library string `json:"library"`          // on the host
	Memory  uint64 `json:"memory,omitempty"` // bytes; 0: no limit
	Cores   int    `json:"cores,omitempty"`  // percent; 0: no limit
}

func (h Hook) name() string { return ", hook " + h.Library }

func (h Hook) limits() []string {
	var env []string
	if h.Memory != 0 {
		env = append(env, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT=%dm", h.Memory/mib))
	}
	if h.Cores != 0 {
		env = append(env, fmt.Sprintf("CUDA_DEVICE_SM_LIMIT=%d", h.Cores))
	}
	return env
}

// hookDevices is the maximum number of GPUs that HAMi-core supports (CUDA_DEVICE_MAX_COUNT).
const hookDevices = 16

// environment returns the variables that the library reads. All are set, because the pod's own variables could lift the
// limits: the limit of one GPU overrides the limit for all, a policy switches limits off, oversubscription lifts the
// memory limit, and CUDA_REDIRECT names the library itself (HAMi-core, multiprocess_memory_limit.c and libvgpu.c).
func (h Hook) environment() []string {
	env := append(h.limits(), "CUDA_OVERSUBSCRIBE=false", "CUDA_REDIRECT="+h.Library)
	if h.Cores != 0 {
		env = append(env, "GPU_CORE_UTILIZATION_POLICY=force")
	}
	for _, limit := range h.limits() {
		name, value, _ := strings.Cut(limit, "=")
		for i := range hookDevices {
			env = append(env, fmt.Sprintf("%s_%d=%s", name, i, value))
		}
	}
	return env
}

// access mounts the library and a file at /etc/ld.so.preload that names it. Each library has its own file, which never
// changes, because containers have it mounted.
func (h Hook) access(host Host) (gpu.Access, error) {
	sum := sha256.Sum256([]byte(h.Library))
	preload := filepath.Join(host.PreloadDir, hex.EncodeToString(sum[:8])+".preload")
	return gpu.Access{
		Env:   h.environment(),
		Files: []gpu.File{{Path: preload, Content: h.Library + "\n"}},
		Mounts: []gpu.Mount{
			{HostPath: h.Library, ContainerPath: h.Library, Options: gpu.ReadOnly},
			{HostPath: preload, ContainerPath: "/etc/ld.so.preload", Options: gpu.ReadOnly},
		},
	}, nil
}
