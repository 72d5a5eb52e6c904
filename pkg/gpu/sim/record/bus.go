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

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
)

// bus is the PCI bus as sysfs, mounted there, shows it.
type bus string

var rootComplex = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)

// complete adds what is between the GPU and the CPU, and the model where NVML has not said it. Without sysfs, the GPU sits at a root
// complex of its own.
func (b bus) complete(p *node.PCI) {
	p.Root, p.NUMANode = fmt.Sprintf("pci%04x:%02x", p.Address.Domain, p.Address.Bus), -1
	device := filepath.Join(string(b), "bus/pci/devices", p.Address.String())
	if number, err := strconv.Atoi(b.read(device, "numa_node")); err == nil {
		p.NUMANode = number
	}
	if p.DeviceID == 0 {
		p.DeviceID = b.number(device, "device")
		p.Subsystem = b.number(device, "subsystem_device")<<16 | b.number(device, "subsystem_vendor")
	}
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
			if at, err := node.ParseAddress(between); err == nil {
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

// number is what a file says in hexadecimal, 0 when it says nothing.
func (b bus) number(device, file string) uint32 {
	n, err := strconv.ParseUint(b.read(device, file), 0, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// displayController is how the class of a GPU begins.
const displayController = "0x03"

// unclaimed is the first of NVIDIA's GPUs on the bus that none of these is.
func (b bus) unclaimed(gpus []node.GPU) (node.Address, bool) {
	devices, err := filepath.Glob(filepath.Join(string(b), "bus/pci/devices/*"))
	if err != nil {
		return node.Address{}, false
	}
	for _, device := range devices {
		at, err := node.ParseAddress(filepath.Base(device))
		if err != nil || b.read(device, "vendor") != fmt.Sprintf("%#04x", node.Vendor) || !strings.HasPrefix(b.read(device, "class"), displayController) ||
			slices.ContainsFunc(gpus, func(g node.GPU) bool { return g.PCI.Address == at }) {
			continue
		}
		return at, true
	}
	return node.Address{}, false
}
