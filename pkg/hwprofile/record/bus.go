// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/passthrough"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// bus is the mount point of sysfs, from which it reads the PCI bus.
type bus string

var rootComplex = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)

// complete adds the bridges between the GPU and the CPU, the model if NVML does not return it, and the driver of
// a vGPU's host. Without sysfs, the
// GPU gets a root complex of its own.
func (b bus) complete(p *hwprofile.PCI) {
	p.Root, p.NUMANode = fmt.Sprintf("pci%04x:%02x", p.Address.Domain, p.Address.Bus), -1
	device := filepath.Join(string(b), "bus/pci/devices", p.Address.String())
	if number, err := strconv.Atoi(b.read(device, "numa_node")); err == nil {
		p.NUMANode = number
	}
	if p.DeviceID == 0 {
		p.DeviceID = b.number(device, "device")
		p.Subsystem = b.number(device, "subsystem_device")<<16 | b.number(device, "subsystem_vendor")
	}
	p.HostDriver = passthrough.Bus{Sysfs: string(b)}.HostDriver(p.Address.PCIAddress)
	way, err := filepath.EvalSymlinks(device)
	if err != nil {
		return
	}
	steps := strings.Split(way, "/")
	for i, step := range slices.Backward(steps) {
		if !rootComplex.MatchString(step) {
			continue
		}
		p.Root = step
		for _, between := range steps[i+1 : len(steps)-1] {
			if at, err := hwprofile.ParseAddress(between); err == nil {
				p.Bridges = append(p.Bridges, at)
			}
		}
		return
	}
}

func (b bus) read(device, file string) string {
	content, err := os.ReadFile(filepath.Join(device, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// number returns a hexadecimal number in a file, 0 if there is none.
func (b bus) number(device, file string) uint32 {
	n, err := strconv.ParseUint(b.read(device, file), 0, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// displayController begins the PCI class of a GPU.
const displayController = "0x03"

// unclaimed returns the first NVIDIA GPU on the bus that is not among gpus.
func (b bus) unclaimed(gpus []hwprofile.GPU) (hwprofile.Address, bool) {
	devices, _ := filepath.Glob(filepath.Join(string(b), "bus/pci/devices/*")) // an error is one of the pattern
	for _, device := range devices {
		at, err := hwprofile.ParseAddress(filepath.Base(device))
		if err != nil || b.read(device, "vendor") != fmt.Sprintf("%#04x", hwprofile.Vendor) ||
			!strings.HasPrefix(b.read(device, "class"), displayController) ||
			slices.ContainsFunc(gpus, func(g hwprofile.GPU) bool { return g.PCI.Address == at }) {
			continue
		}
		return at, true
	}
	return hwprofile.Address{}, false
}
