// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"fmt"
	"slices"
	"strings"
)

// refusal says why the GPU cannot be given to a virtual machine; empty: it can.
func (b Bus) refusal(g GPU, all []member, isGPU func(Function) bool) string {
	if i := slices.IndexFunc(all, isNVSwitch); i >= 0 {
		return fmt.Sprintf("the machine has an NVSwitch (%s): its NVLink fabric would have to be partitioned, so only "+
			"all GPUs together could be given to a virtual machine", all[i].PCI)
	}
	if b.HostDriver(g.PCI) != "" {
		return "it is a vGPU: the host of this virtual machine has the GPU"
	}
	if g.Group == NoGroup {
		return "it has no IOMMU group: enable the IOMMU in the firmware and on the kernel's command line"
	}
	if !b.Registered() {
		return "the driver " + Driver + " is not registered: load the kernel module " + Driver
	}
	if exists(b.function(g.PCI, "virtfn0")) {
		return "it has virtual functions (SR-IOV)"
	}
	for _, m := range all {
		if m.group != g.Group || g.hasOnCard(m.Function) {
			continue
		}
		if isGPU(m.Function) {
			return fmt.Sprintf("the GPU %s is in the same IOMMU group %d, which one virtual machine has as a whole",
				m.PCI, g.Group)
		}
		if !viable(m.Function) {
			return fmt.Sprintf("%s is in the same IOMMU group %d and has the driver %s: unbind it, or isolate the "+
				"slots (ACS) in the firmware", m.PCI, g.Group, m.Driver)
		}
	}
	return ""
}

// isNVSwitch reports whether the function is an NVSwitch, through which all GPUs of a machine are connected.
func isNVSwitch(m member) bool { return m.Vendor == vendorNVIDIA && m.Class>>8 == classOtherBridge }

// viable reports whether the kernel lets a program have the function's IOMMU group while it is bound as it is: its
// driver must leave DMA to VFIO.
func viable(f Function) bool {
	switch f.Driver {
	case "", "pci-stub":
		return true
	case "pcieport":
		return f.Class>>8 == classPCIBridge
	}
	return strings.HasSuffix(strings.ReplaceAll(f.Driver, "_", "-"), Driver) // also those of vendors
}
