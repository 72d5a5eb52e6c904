// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"strings"
)

// VFIO says how a GPU is given to a virtual machine: its functions are bound to the kernel's driver vfio-pci. The zero
// value of Functions means that the driver neither binds nor returns them.
type VFIO struct {
	Group          int    // its IOMMU group
	Vendor, Device string // PCI IDs, four hexadecimal digits: "10de", "26b5"
	// Functions are those of its card, itself first, with their drivers while no virtual machine has it.
	Functions []PCIFunction `json:",omitempty"`
	// Refusal says why it cannot be given to a virtual machine; empty: it can.
	Refusal string `json:",omitempty"`
	// Blocked says who keeps the driver from binding it now; empty: nobody.
	Blocked string `json:",omitempty"`
	// Bound means that it is bound to vfio-pci, so that NVML does not list it.
	Bound bool `json:",omitempty"`
}

// String is for people: "10de:26b5 in IOMMU group 42, 0000:3b:00.0 nvidia".
func (v *VFIO) String() string {
	text := fmt.Sprintf("%s:%s in IOMMU group %d", v.Vendor, v.Device, v.Group)
	for _, f := range v.Functions {
		text += fmt.Sprintf(", %s %s", f.PCI, f.Driver)
	}
	if v.Bound {
		text += ", bound to vfio-pci"
	}
	if v.Refusal != "" {
		text += ": " + v.Refusal
	}
	return text
}

// External reports whether somebody else has bound the GPU to vfio-pci, for example at boot.
func (v VFIO) External() bool { return v.Bound && len(v.Functions) == 0 }

// PCIFunction is a PCI function and its driver.
type PCIFunction struct {
	PCI    PCIAddress `json:"pci"`
	Driver string     `json:"driver,omitempty"` // empty: none
}

// InVM reports whether the GPU is bound to vfio-pci: NVML does not list it, and says nothing about it.
func (d Device) InVM() bool { return d.VFIO != nil && d.VFIO.Bound }

// vfioMark follows the name of the GPU in the name of the device for virtual machines.
const vfioMark = "-vfio"

// VFIOName returns the device name of the named GPU for virtual machines: "gpu-3b-00-0-vfio".
func VFIOName(parent string) string { return parent + vfioMark }

// IsVFIO reports whether the named device is a GPU for virtual machines.
func IsVFIO(device string) bool { return strings.HasSuffix(device, vfioMark) }
