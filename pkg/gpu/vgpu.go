// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"strings"
)

// VGPUs are the parts of a physical GPU that virtual machines can have at the same time (NVIDIA vGPU).
type VGPUs struct {
	Types    []VGPUType `json:",omitempty"` // of those that can be made, in the order of the kernel
	Existing []VGPU     `json:",omitempty"` // in the order of their names
}

// String is for people: "4x A16-4Q of 4096 MiB; A16-4Q, mediated device UUID".
func (v *VGPUs) String() string {
	var all []string
	for _, t := range v.Types {
		all = append(all, t.String())
	}
	for _, one := range v.Existing {
		all = append(all, one.String())
	}
	return strings.Join(all, "; ")
}

// VGPUType is a kind of vGPU.
type VGPUType struct {
	Name   string // as NVIDIA writes it: "A16-4Q"
	Memory uint64 // frame buffer, in bytes; 0: unknown
	Max    int    // how many of them a GPU can have; 0: unknown
}

// String is for people: "4x A16-4Q of 4096 MiB".
func (t VGPUType) String() string {
	return fmt.Sprintf("%dx %s of %d MiB", t.Max, t.Name, t.Memory>>20)
}

// VGPU is a part of a GPU for a virtual machine: a mediated device, or a virtual function (SR-IOV).
type VGPU struct {
	Parent UUID // the physical GPU
	Type   VGPUType
	// Function is the virtual function, or the function that the mediated device is below.
	Function PCIAddress
	Number   int    // of the virtual function
	Group    int    // its IOMMU group; -1: not known
	MDev     string // the UUID of the mediated device; empty: it is not made yet, or a virtual function
	// Made means that the driver makes it for a claim, and removes it afterwards.
	Made bool `json:",omitempty"`
}

// String is for people: "A16-4Q, mediated device UUID", "L40S-4Q, virtual function 0000:3b:00.4".
func (v VGPU) String() string {
	if v.MDev != "" {
		return fmt.Sprintf("%s, mediated device %s", v.Type.Name, v.MDev)
	}
	return fmt.Sprintf("%s, virtual function %s", v.Type.Name, v.Function)
}

// label distinguishes it from the other vGPUs of its GPU.
func (v VGPU) label() string {
	if v.MDev != "" {
		return v.MDev
	}
	return fmt.Sprint("vf", v.Number)
}

// Foreign returns the vGPUs that somebody else has made.
func (v *VGPUs) Foreign() []VGPU {
	var all []VGPU
	if v != nil {
		for _, one := range v.Existing {
			if !one.Made {
				all = append(all, one)
			}
		}
	}
	return all
}

// vgpuMark follows the name of the GPU in the name of a vGPU.
const vgpuMark = "-vgpu-"

// VGPUName returns the device name of an existing vGPU of the named GPU: "gpu-3b-00-0-vgpu-UUID" of a mediated device,
// "gpu-3b-00-0-vgpu-vf3" of a virtual function.
func VGPUName(parent string, v VGPU) string { return parent + vgpuMark + v.label() }

// PossibleVGPUName returns the device name of the nth vGPU that the driver can make: "gpu-3b-00-0-vgpu-a16-4q-0".
func PossibleVGPUName(parent string, t VGPUType, n int) string {
	label := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(t.Name))
	return fmt.Sprintf("%s%s%s-%d", parent, vgpuMark, label, n)
}

// vgpuProfile returns the type in the name of a vGPU that the driver can make, and otherwise a part of the name that no
// other vGPU has.
func vgpuProfile(device string) string {
	_, label, _ := strings.Cut(device, vgpuMark)
	const uuid = 36 // characters
	if !strings.Contains(label, "-") || len(label) == uuid && strings.Count(label, "-") == 4 {
		return device // a virtual function or a mediated device that exists
	}
	return strings.TrimSuffix(strings.TrimRight(label, "0123456789"), "-")
}

// IsVGPU reports whether the named device is a vGPU.
func IsVGPU(device string) bool { return strings.Contains(device, vgpuMark) }
