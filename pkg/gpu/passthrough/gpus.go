// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

const (
	vendorNVIDIA = "10de"

	classDisplay     = 0x03 // with or without a display
	classBridge      = 0x06
	classPCIBridge   = 0x0604
	classOtherBridge = 0x0680 // of NVIDIA: an NVSwitch
)

// member is a function and its IOMMU group.
type member struct {
	Function
	group int
}

// GPUs returns the NVIDIA GPUs of the bus, ascending by address. Virtual functions are none. A machine without a PCI
// bus has none.
func (b Bus) GPUs() ([]GPU, error) {
	all, err := b.members()
	if err != nil {
		return nil, fmt.Errorf("read the PCI bus: %w", err)
	}
	isGPU := b.isGPU
	if isGPU == nil {
		isGPU = func(f Function) bool { return f.Vendor == vendorNVIDIA && f.Class>>16 == classDisplay }
	}
	var gpus []GPU
	for _, m := range all {
		if !isGPU(m.Function) {
			continue
		}
		g := GPU{Function: m.Function, Group: m.group, Own: []Function{m.Function}}
		for _, other := range all {
			if g.hasOnCard(other.Function) && other.PCI != g.PCI {
				g.Own = append(g.Own, other.Function)
			}
		}
		gpus = append(gpus, g)
	}
	for i := range gpus {
		gpus[i].Refusal = b.refusal(gpus[i], all, isGPU)
	}
	return gpus, nil
}

// hasOnCard reports whether the function is part of the GPU's card: a function of the same device, and no bridge.
func (g GPU) hasOnCard(f Function) bool {
	f.PCI.Function = g.PCI.Function
	return f.PCI == g.PCI && f.Class>>16 != classBridge
}

// members reads all functions of the bus but virtual ones, ascending by address.
func (b Bus) members() ([]member, error) {
	entries, err := os.ReadDir(filepath.Join(b.Sysfs, "bus/pci/devices"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []member
	for _, e := range entries {
		at, err := gpu.ParsePCIAddress(e.Name())
		if err != nil {
			continue
		}
		vendor, device, class := b.number(at, "vendor"), b.number(at, "device"), b.number(at, "class")
		if vendor == 0 || class == 0 || exists(b.function(at, "physfn")) {
			continue // it has just gone, or is virtual
		}
		m := member{group: NoGroup, Function: Function{PCI: at, Class: class, Driver: b.DriverOf(at),
			Vendor: fmt.Sprintf("%04x", vendor), Device: fmt.Sprintf("%04x", device)}}
		if group, err := strconv.Atoi(b.target(at, "iommu_group")); err == nil {
			m.group = group
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(x, y member) int { return x.PCI.Compare(y.PCI) })
	return all, nil
}

// number reads a file like "0x10de"; 0: it cannot be read.
func (b Bus) number(at gpu.PCIAddress, name string) uint32 {
	text, err := os.ReadFile(b.function(at, name))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 0, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}
