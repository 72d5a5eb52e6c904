// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// Isolation keeps containers within their limits. At most one field is set; none: no limits.
type Isolation struct {
	MPS    *MPSClient `json:"mps,omitempty"`
	Hook   *Hook      `json:"hook,omitempty"`
	Cgroup *Cgroup    `json:"cgroup,omitempty"`
}

// isolation is implemented by every kind of isolation.
type isolation interface {
	// name is for people and follows the settings of the GPU: ", MPS".
	name() string
	// limits returns the limits of a container as variables, "NAME=value".
	limits() []string
	// access returns what a container needs for the isolation, besides the device. The error says why the machine
	// cannot do it.
	access(h Host) (gpu.Access, error)
}

// Host is what isolations need to know about the machine.
type Host struct {
	Daemons mps.Dir // of the MPS daemons
	// SharedMemory is the /dev/shm that MPS daemons without one of their own share with their clients; empty: none.
	SharedMemory string
	// PreloadDir is the directory of the files that make the dynamic loader load a hook library.
	PreloadDir string
	// MemoryLimit returns what a container needs so that NVIDIA's driver limits its memory on the assigned GPU.
	MemoryLimit func() (gpu.Access, error)
}

// isolation returns the one that is set, or noIsolation.
func (i Isolation) isolation() isolation {
	switch {
	case i.MPS != nil:
		return *i.MPS
	case i.Hook != nil:
		return *i.Hook
	case i.Cgroup != nil:
		return *i.Cgroup
	}
	return noIsolation{}
}

// noIsolation sets no limits.
type noIsolation struct{}

func (noIsolation) name() string                    { return "" }
func (noIsolation) limits() []string                { return nil }
func (noIsolation) access(Host) (gpu.Access, error) { return gpu.Access{}, nil }

// Limits returns the variables, "NAME=value", that limit a container; none: no limits.
func (i Isolation) Limits() []string { return i.isolation().limits() }

// Access returns what containers need to be kept within their limits.
func (i Isolation) Access(h Host) (gpu.Access, error) { return i.isolation().access(h) }

const mib = 1 << 20

// quota is what a container may use of a GPU; 0: no limit.
type quota struct {
	memory uint64 // bytes
	cores  int    // percent
}

// MemoryOnly is why a share with cores gets no GPU with isolation cgroup.
const MemoryOnly = "isolation cgroup limits memory only; ask for memory alone"

// isolate limits the containers of a share to the quota, with the isolation that the administrator has chosen for the
// GPU.
func (a *Assignment) isolate(q quota, d gpu.Device) error {
	switch d.Use.Isolation {
	case gpu.IsolationMPS:
		a.Settings = gpu.Settings{Mode: gpu.ExclusiveProcess}
		a.MPS = newMPSClient(q, d)
	case gpu.IsolationHook:
		a.Hook = &Hook{Library: d.Use.Hook.Path, Memory: q.memory, Cores: q.cores}
	case gpu.IsolationCgroup:
		if q.cores != 0 {
			return refuseField(ErrRefused, "cores", "", MemoryOnly)
		}
		a.Cgroup = &Cgroup{Memory: q.memory}
	case gpu.IsolationNone:
	}
	return nil
}
