// SPDX-License-Identifier: Apache-2.0

// Package record makes every NVML call of the driver on a machine, and writes the answers and errors as a profile for
// the simulator. It turns a bug report into a test.
package record

import (
	"fmt"
	"slices"
	"strings"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// Machine is the machine to record.
type Machine struct {
	Library nvmllib.Interface
	Sysfs   string // where sysfs is mounted
	Name    string // of the profile
	Kernel  string // of the machine, for people
}

// Recording is the profile of a machine.
type Recording struct {
	Profile hwprofile.Profile
	Notes   []string // what the format cannot hold and what is derived, for people
}

// Read makes every call once. It changes nothing. Of a GPU without a handle, it records the error and the PCI address.
// It returns an error if NVML cannot be initialised, or does not return the number of GPUs or the driver version.
func Read(m Machine) (Recording, error) {
	if ret := m.Library.InitWithFlags(nvmllib.INIT_FLAG_NO_GPUS); ret != nvmllib.SUCCESS {
		return Recording{}, fmt.Errorf("initialise NVML: %w", ret)
	}
	defer m.Library.Shutdown()
	count, ret := m.Library.DeviceGetCount()
	if ret != nvmllib.SUCCESS {
		return Recording{}, fmt.Errorf("count GPUs: %w", ret)
	}
	r := &reader{Machine: m, bus: bus(m.Sysfs)}
	system := hwprofile.System{
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
	profile := hwprofile.Profile{Name: m.Name, Description: fmt.Sprintf("recorded from a machine with %d GPUs", count),
		Kernel: m.Kernel, System: system}
	for _, g := range gpus {
		profile.GPUs = append(profile.GPUs, g.read(gpus))
	}
	r.place(profile.GPUs)
	return Recording{profile, r.notes}, nil
}

// YAML returns the recording in the format of ParseProfile. The error says what the format cannot hold.
func (r Recording) YAML() ([]byte, error) {
	text, err := hwprofile.Format(r.Profile)
	if err != nil {
		return nil, err
	}
	head := "# What NVML answered, written by dra-kubelet-plugin record. The answers carry the names of go-nvml's " +
		"calls.\n"
	for _, note := range r.Notes {
		head += "# " + note + "\n"
	}
	return append([]byte(head), text...), nil
}

// Mask replaces what identifies the machine: serial numbers and UUIDs of GPUs, partitions and the NVLink fabric. Equal
// values get equal replacements: GPU-00000000-0000-0000-0000-000000000003 is the fourth UUID.
func (r Recording) Mask() Recording {
	gpus, fabrics, partitions, serials := numbers{}, numbers{}, numbers{}, numbers{}
	r.Profile.GPUs = slices.Clone(r.Profile.GPUs)
	for i := range r.Profile.GPUs {
		g := &r.Profile.GPUs[i]
		c := &g.Calls
		c.GetUUID = mapped(c.GetUUID, func(s string) string { return "GPU-" + uuidNumbered(gpus.of(s)) })
		c.GetSerial = mapped(c.GetSerial, func(s string) string { return fmt.Sprintf("%013d", serials.of(s)) })
		c.GetGpuFabricInfo = mapped(c.GetGpuFabricInfo, func(f hwprofile.Fabric) hwprofile.Fabric {
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

// numbers assigns numbers to names in the order in which they occur.
type numbers map[string]int

func (n numbers) of(name string) int {
	if _, met := n[name]; !met {
		n[name] = len(n)
	}
	return n[name]
}

func uuidNumbered(n int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012x", n) }

func mapped[T any](a hwprofile.Answer[T], f func(T) T) hwprofile.Answer[T] {
	if v, e := a.Get(); e == "" {
		return hwprofile.Value(f(v))
	}
	return a
}

func code(ret nvmllib.Return) hwprofile.Error { return hwprofile.ErrorNumbered(int(ret)) }

// of converts the result of a call.
func of[T any](v T, ret nvmllib.Return) hwprofile.Answer[T] {
	if ret != nvmllib.SUCCESS {
		return hwprofile.Failure[T](code(ret))
	}
	return hwprofile.Value(v)
}

// reader records a machine.
type reader struct {
	Machine
	bus   bus
	notes []string
}

func (r *reader) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// has reports whether the library has the call. go-nvml aborts the program if it calls a missing one.
func (r *reader) has(call string) bool {
	return r.Library.Extensions().LookupSymbol("nvmlDevice"+call) == nil
}
