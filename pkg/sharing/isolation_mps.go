// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// MPSClient is a container's use of GPUs through an MPS daemon, with its limits.
type MPSClient struct {
	Daemon           string     `json:"daemon"` // its ID
	GPUs             []gpu.UUID `json:"gpus"`   // of the daemon; the client indexes them in this order
	ThreadPercentage int        `json:"threadPercentage,omitempty"`
	Memory           []uint64   `json:"memory,omitempty"` // bytes of each GPU; 0: no limit
	MultiUser        bool       `json:"multiUser,omitempty"`
}

// newMPSClient returns a client with a share of the GPU.
func newMPSClient(q quota, d gpu.Device) *MPSClient {
	return &MPSClient{Daemon: d.Name, GPUs: []gpu.UUID{d.UUID}, ThreadPercentage: q.cores, Memory: []uint64{q.memory},
		MultiUser: true}
}

func (c MPSClient) name() string { return ", MPS" }

// memoryLimits begins the variable of a client's memory limits. According to NVIDIA's figures of R615, a client has no
// limit at all, not even that of its daemon, if the variable has a GPU that the client does not see.
const memoryLimits = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="

// limits refers to GPUs by their index in the daemon: NVIDIA's programs did not apply limits by UUID.
func (c MPSClient) limits() []string {
	var env, memory []string
	if c.ThreadPercentage != 0 {
		env = append(env, fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", c.ThreadPercentage))
	}
	for i, bytes := range c.Memory {
		if bytes != 0 {
			memory = append(memory, fmt.Sprintf("%d=%dM", i, bytes/mib))
		}
	}
	if len(memory) > 0 {
		env = append(env, memoryLimits+strings.Join(memory, ","))
	}
	return env
}

// access mounts the daemon's pipe directory, and the shared memory between the daemon and its clients. Clients of
// several GPUs have the memory limits of their daemon, which are the same, and no variable: a container may use one
// request of the claim, and a program may narrow CUDA_VISIBLE_DEVICES.
func (c MPSClient) access(h Host) (gpu.Access, error) {
	pipe, limits := h.Daemons.Pipe(c.Daemon), c.limits()
	if len(c.GPUs) > 1 {
		limits = slices.DeleteFunc(limits, func(v string) bool { return strings.HasPrefix(v, memoryLimits) })
	}
	access := gpu.Access{
		Env:    append([]string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe}, limits...),
		Mounts: []gpu.Mount{{HostPath: pipe, ContainerPath: pipe, Options: gpu.ReadWrite}},
	}
	state, err := h.Daemons.State(c.Daemon)
	if err != nil {
		return gpu.Access{}, err
	}
	if memory := cmp.Or(state.SharedMemory, h.SharedMemory); memory != "" {
		access.Mounts = append(access.Mounts, gpu.Mount{HostPath: memory, ContainerPath: "/dev/shm",
			Options: gpu.ReadWrite})
	}
	return access, nil
}

// DaemonIDs returns the IDs of the MPS daemons that the plan uses, sorted and unique.
func (p Plan) DaemonIDs() []string {
	var ids []string
	for _, a := range p.Assignments {
		if a.MPS != nil {
			ids = append(ids, a.MPS.Daemon)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Daemons returns those of the MPS daemons that a holder uses, sorted by ID. A daemon has the highest limits of its
// clients, because a client can lower the limits of its daemon but not raise them.
func Daemons(ids []string, holders []Holder) []mps.Daemon {
	daemons := map[string]mps.Daemon{}
	for _, h := range holders {
		for _, a := range h.Plan.Assignments {
			if a.MPS != nil && slices.Contains(ids, a.MPS.Daemon) {
				daemons[a.MPS.Daemon] = withClient(daemons[a.MPS.Daemon], *a.MPS)
			}
		}
	}
	return slices.SortedFunc(maps.Values(daemons), func(a, b mps.Daemon) int { return strings.Compare(a.ID, b.ID) })
}

// withClient returns the daemon with one more client.
func withClient(d mps.Daemon, c MPSClient) mps.Daemon {
	first := d.ID == ""
	out := mps.Daemon{ID: c.Daemon, GPUs: c.GPUs, MultiUser: d.MultiUser || c.MultiUser, Memory: map[gpu.UUID]uint64{}}
	if c.ThreadPercentage != 0 && (first || d.ThreadPercentage != 0) {
		out.ThreadPercentage = max(d.ThreadPercentage, c.ThreadPercentage)
	}
	for i, id := range c.GPUs {
		if i < len(c.Memory) && c.Memory[i] != 0 && (first || d.Memory[id] != 0) {
			out.Memory[id] = max(d.Memory[id], c.Memory[i])
		}
	}
	return out
}
