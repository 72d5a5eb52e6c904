// SPDX-License-Identifier: Apache-2.0

// Package passthrough gives GPUs to virtual machines: it finds them on the PCI bus, binds them to vfio-pci and returns
// them to their drivers. It reads and writes sysfs.
package passthrough

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Driver is the kernel's driver for functions that programs use through VFIO.
const Driver = "vfio-pci"

// NoGroup is the Group of a GPU that no IOMMU group has.
const NoGroup = -1

// ErrGone is returned for a function that is not on the PCI bus any more. The message names it.
var ErrGone = errors.New("not on the PCI bus")

// Bus is the PCI bus of a machine as Linux shows it in sysfs.
type Bus struct {
	Sysfs string // where sysfs is mounted: "/sys" on a real machine
	Dev   string // where the device nodes of the machine are: "/dev"
	// Write writes the text into an existing file of sysfs; nil: into the real one. The error has the kernel's errno.
	Write func(file, text string) error

	isGPU func(Function) bool // nil: NVIDIA's display controllers
}

// Function is a PCI function.
type Function struct {
	PCI    gpu.PCIAddress
	Vendor string // four hexadecimal digits: "10de"
	Device string // likewise: "26b5"
	Class  uint32 // class, subclass and programming interface, a byte each: 0x030200
	Driver string // the driver that it is bound to; empty: none
}

// GPU is an NVIDIA display controller and its IOMMU group.
type GPU struct {
	Function
	Group   int        // its IOMMU group; NoGroup: none
	Own     []Function // the functions of its card, itself first: all are bound together
	Refusal string     // why it cannot be given to a virtual machine; empty: it can
}

// HasIOMMUFD reports whether the kernel has iommufd. Older kernels have it without nodes for PCI functions: then Nodes
// returns an error.
func (b Bus) HasIOMMUFD() bool { return exists(filepath.Join(b.Dev, "iommu")) }

// Registered reports whether the kernel has vfio-pci.
func (b Bus) Registered() bool { return exists(b.driver(Driver, "")) }

// InUse reports whether vfio-pci has any function, also one that is no GPU.
func (b Bus) InUse() bool { return len(b.bound(Driver)) > 0 }

// BoundToNVIDIA returns the entries in sysfs of the functions that NVIDIA's driver has: the GPUs, and virtual functions
// of them. On a server with hundreds of functions this reads far less than GPUs.
func (b Bus) BoundToNVIDIA() []string { return b.bound("nvidia") }

// bound returns the entries in sysfs of the driver's functions, in the same order each time; none: there is no such
// driver.
func (b Bus) bound(driver string) []string {
	entries, _ := filepath.Glob(b.driver(driver, "[0-9a-f]*:*:*.*")) // the pattern has no mistake
	return entries
}

// DriverOf returns the driver that the function is bound to; empty: none.
func (b Bus) DriverOf(at gpu.PCIAddress) string { return b.target(at, "driver") }

func (b Bus) function(at gpu.PCIAddress, name string) string {
	return filepath.Join(b.Sysfs, "bus/pci/devices", at.String(), name)
}

func (b Bus) driver(name, file string) string {
	return filepath.Join(b.Sysfs, "bus/pci/drivers", name, file)
}

// target returns the last part of what the function's link points to; empty: it has no such link.
func (b Bus) target(at gpu.PCIAddress, link string) string { return target(b.function(at, ""), link) }

// target returns the last part of what the link in the directory points to; empty: there is none.
func target(dir, link string) string {
	to, err := os.Readlink(filepath.Join(dir, link))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
