// SPDX-License-Identifier: Apache-2.0

// Package record asks a machine everything that the driver asks NVML, and writes the answers, errors among them, as a profile: what
// the simulation is made from. So a bug report from the field becomes a test.
package record

import (
	"fmt"
	"slices"
	"strings"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
)

// Machine is what is recorded.
type Machine struct {
	Library nvmllib.Interface
	Sysfs   string // where sysfs is mounted
	Name    string // of the profile
	Kernel  string // of the machine, for people
}

// Recording is what a machine has answered.
type Recording struct {
	Profile node.Profile
	Notes   []string // what the format has no place for, and what was not asked but derived, for people
}

// Read asks the machine everything once. It changes nothing. Of a GPU that NVML gives no handle of, it has the error and the place.
// The error is for a library that cannot be initialised, or does not say how many GPUs there are or which driver it is of.
func Read(m Machine) (Recording, error) {
	if ret := m.Library.Init(); ret != nvmllib.SUCCESS {
		return Recording{}, fmt.Errorf("initialise NVML: %w", ret)
	}
	defer m.Library.Shutdown()
	count, ret := m.Library.DeviceGetCount()
	if ret != nvmllib.SUCCESS {
		return Recording{}, fmt.Errorf("count GPUs: %w", ret)
	}
	r := &reader{Machine: m, bus: bus(m.Sysfs)}
	system := node.System{
		DriverVersion: of(m.Library.SystemGetDriverVersion()),
		NVMLVersion:   of(m.Library.SystemGetNVMLVersion()),
		CUDAVersion:   of(m.Library.SystemGetCudaDriverVersion()),
	}
	if _, e := system.DriverVersion.Get(); e != "" {
		return Recording{}, fmt.Errorf("get driver version, without which there is no recording: %s", e)
	}
	var gpus []*gpuReader
	for i := range count {
		handle, ret := m.Library.DeviceGetHandleByIndex(i)
		gpus = append(gpus, &gpuReader{reader: r, index: i, handle: handle, lost: code(ret)})
	}
	profile := node.Profile{Name: m.Name, Description: fmt.Sprintf("recorded from a machine with %d GPUs", count), Kernel: m.Kernel, System: system}
	for _, g := range gpus {
		profile.GPUs = append(profile.GPUs, g.read(gpus))
	}
	r.place(profile.GPUs)
	return Recording{profile, r.notes}, nil
}

// YAML is the recording as a file that ParseProfile reads. The error says what the format cannot hold.
func (r Recording) YAML() ([]byte, error) {
	text, err := node.Format(r.Profile)
	if err != nil {
		return nil, err
	}
	head := "# What NVML answered, written by dra-kubelet-plugin record. The answers carry the names of go-nvml's calls.\n"
	for _, note := range r.Notes {
		head += "# " + note + "\n"
	}
	return append([]byte(head), text...), nil
}

// Mask hides what identifies the machine: UUIDs of GPUs, partitions and the NVLink fabric, and serial numbers. Each is replaced by one
// that is valid, the same for the same: GPU-00000000-0000-0000-0000-000000000003 is the fourth.
func (r Recording) Mask() Recording {
	gpus, fabrics, partitions, serials := numbers{}, numbers{}, numbers{}, numbers{}
	r.Profile.GPUs = slices.Clone(r.Profile.GPUs)
	for i := range r.Profile.GPUs {
		g := &r.Profile.GPUs[i]
		c := &g.Calls
		c.GetUUID = mapped(c.GetUUID, func(s string) string { return "GPU-" + uuidNumbered(gpus.of(s)) })
		c.GetSerial = mapped(c.GetSerial, func(s string) string { return fmt.Sprintf("%013d", serials.of(s)) })
		c.GetGpuFabricInfo = mapped(c.GetGpuFabricInfo, func(f node.Fabric) node.Fabric {
			if strings.Trim(f.ClusterUUID, "0-") != "" {
				f.ClusterUUID = uuidNumbered(fabrics.of(f.ClusterUUID) + 1) // 0 means that there is none
			}
			return f
		})
		g.Instances = slices.Clone(g.Instances)
		for j := range g.Instances {
			g.Instances[j].Compute = slices.Clone(g.Instances[j].Compute)
			for k := range g.Instances[j].Compute {
				ci := &g.Instances[j].Compute[k]
				ci.UUID = "MIG-" + uuidNumbered(partitions.of(ci.UUID))
			}
		}
	}
	return r
}

// numbers are the names that have been met, numbered in that order.
type numbers map[string]int

func (n numbers) of(name string) int {
	if _, met := n[name]; !met {
		n[name] = len(n)
	}
	return n[name]
}

func uuidNumbered(n int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012x", n) }

func mapped[T any](a node.Answer[T], f func(T) T) node.Answer[T] {
	if v, e := a.Get(); e == "" {
		return node.Value(f(v))
	}
	return a
}

func code(ret nvmllib.Return) node.Error { return node.ErrorNumbered(int(ret)) }

// of is what a call has answered.
func of[T any](v T, ret nvmllib.Return) node.Answer[T] {
	if ret != nvmllib.SUCCESS {
		return node.Failure[T](code(ret))
	}
	return node.Value(v)
}

// reader asks a machine.
type reader struct {
	Machine
	bus   bus
	notes []string
}

func (r *reader) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// has says whether the library has the call. The binding ends the process when it calls what the library does not have.
func (r *reader) has(call string) bool {
	return r.Library.Extensions().LookupSymbol("nvmlDevice"+call) == nil
}
