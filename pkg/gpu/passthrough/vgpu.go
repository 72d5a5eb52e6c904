// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// VGPUs returns the vGPUs of the GPU at the address, without their Parent; nil: NVIDIA's driver for hosts of vGPUs does
// not run, or the model has none. Mediated devices are below the GPU or its virtual functions. With a newer kernel, a
// virtual function is a vGPU itself once it has a type.
func (b Bus) VGPUs(at gpu.PCIAddress) *gpu.VGPUs {
	var all gpu.VGPUs
	functions := b.withVirtual(at)
	names := b.functionTypes(functions)
	found := names != nil
	for i, f := range functions {
		for _, t := range b.mediatedTypes(f) {
			found = true
			if t.Memory > 0 && t.Max > 0 && !slices.Contains(all.Types, t.VGPUType) {
				all.Types = append(all.Types, t.VGPUType)
			}
			devices, _ := os.ReadDir(filepath.Join(t.dir, "devices")) // none if it is not there
			for _, d := range devices {
				all.Existing = append(all.Existing, gpu.VGPU{Type: t.VGPUType, Function: f, MDev: d.Name(),
					Group: groupOf(b.mediated(d.Name(), ""))})
			}
		}
		if id := textOf(b.function(f, "nvidia/current_vgpu_type")); id != "" && id != "0" {
			found = true
			name := cmp.Or(names[id], "type "+id)
			all.Existing = append(all.Existing, gpu.VGPU{Type: gpu.VGPUType{Name: name, Memory: memoryOf(name)},
				Function: f, Number: i - 1, Group: groupOf(b.function(f, ""))})
		}
	}
	if !found {
		return nil
	}
	slices.SortFunc(all.Existing, func(x, y gpu.VGPU) int {
		return cmp.Or(cmp.Compare(x.MDev, y.MDev), cmp.Compare(x.Number, y.Number))
	})
	return &all
}

// CreateVGPU makes a mediated device with the UUID, unless it exists. Errors: ErrGone; gpu.ErrBusy if the GPU has no
// room for one of that type, or if ctx ends before the kernel has made it.
func (b Bus) CreateVGPU(ctx context.Context, at gpu.PCIAddress, name, uuid string) error {
	return b.change(ctx, at, fmt.Sprintf("make the vGPU %s of type %s", uuid, name), func(write writer) error {
		if dir := b.mediated(uuid, ""); exists(dir) {
			if is := typeName(textOf(filepath.Join(dir, "mdev_type/name"))); is != name {
				return fmt.Errorf("it exists with the type %s", is)
			}
			return nil
		}
		for _, f := range b.withVirtual(at) {
			for _, t := range b.mediatedTypes(f) {
				if t.Name == name && t.available > 0 {
					return write(filepath.Join(t.dir, "create"), uuid)
				}
			}
		}
		return fmt.Errorf("the GPU has no room for it beside its other vGPUs, which may be of another type: %w",
			gpu.ErrBusy)
	})
}

// RemoveVGPU removes the mediated device. It is no error if there is none. Errors: gpu.ErrBusy, also if ctx ends while
// a program has it open.
func (b Bus) RemoveVGPU(ctx context.Context, at gpu.PCIAddress, uuid string) error {
	err := b.change(ctx, at, "remove the vGPU "+uuid, func(write writer) error {
		if !exists(b.mediated(uuid, "")) {
			return nil
		}
		return write(b.mediated(uuid, "remove"), "1")
	})
	if errors.Is(err, ErrGone) {
		return nil
	}
	return err
}

// VGPUNodes is Nodes for a mediated device.
func (b Bus) VGPUNodes(uuid string, iommufd bool) ([]gpu.DeviceNode, error) { //nolint:revive // as Nodes
	return b.nodes(b.mediated(uuid, ""), uuid, iommufd)
}

// mediated returns the path of a file of the mediated device.
func (b Bus) mediated(uuid, file string) string {
	return filepath.Join(b.Sysfs, "bus/mdev/devices", uuid, file)
}

// withVirtual returns the function and its virtual functions, in the order of their numbers.
func (b Bus) withVirtual(at gpu.PCIAddress) []gpu.PCIAddress {
	all := []gpu.PCIAddress{at}
	for i := 0; ; i++ {
		f, err := gpu.ParsePCIAddress(b.target(at, fmt.Sprint("virtfn", i)))
		if err != nil {
			return all
		}
		all = append(all, f)
	}
}

// mediatedType is a type of mediated devices of a function.
type mediatedType struct {
	gpu.VGPUType
	dir       string
	available int // how many more the function can have
}

// description is what NVIDIA's driver says of a type: "num_heads=4, …, framebuffer=4096M, …, max_instance=4".
var description = regexp.MustCompile(`framebuffer=(\d+)M.*max_instance=(\d+)`)

func (b Bus) mediatedTypes(at gpu.PCIAddress) []mediatedType {
	dirs, _ := filepath.Glob(b.function(at, "mdev_supported_types/*")) // the pattern is valid
	var all []mediatedType
	for _, dir := range dirs {
		t := mediatedType{dir: dir}
		t.Name = typeName(textOf(filepath.Join(dir, "name")))
		if m := description.FindStringSubmatch(textOf(filepath.Join(dir, "description"))); m != nil {
			memory, _ := strconv.ParseUint(m[1], 10, 32)
			t.Memory = memory << 20
			t.Max, _ = strconv.Atoi(m[2])
		}
		t.available, _ = strconv.Atoi(textOf(filepath.Join(dir, "available_instances")))
		if t.Name != "" {
			all = append(all, t)
		}
	}
	slices.SortStableFunc(all, func(x, y mediatedType) int { return cmp.Compare(number(x.dir), number(y.dir)) })
	return all
}

// number returns N of ".../nvidia-N".
func number(dir string) int {
	_, text, _ := strings.Cut(filepath.Base(dir), "-")
	n, _ := strconv.Atoi(text)
	return n
}

// functionTypes returns the names of the types that virtual functions can have, by ID; nil: they can have none. A full
// GPU lists none, so that they may be known from one function and not from another. The lines of the file are like
// "1145  : NVIDIA L40S-4Q".
func (b Bus) functionTypes(functions []gpu.PCIAddress) (names map[string]string) {
	for _, f := range functions {
		text, err := os.ReadFile(b.function(f, "nvidia/creatable_vgpu_types"))
		if err != nil {
			continue
		}
		if names == nil {
			names = map[string]string{}
		}
		for line := range strings.Lines(string(text)) {
			if id, name, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(id) != "ID" {
				names[strings.TrimSpace(id)] = typeName(name)
			}
		}
	}
	return names
}

// typeName returns the name of the type without the name of the product line.
func typeName(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimPrefix(strings.TrimPrefix(text, "GRID "), "NVIDIA ")
}

// memoryOf returns the frame buffer that the name of a type tells, in bytes: 4 GiB of "L40S-4Q", 512 MiB of "M10-0B".
// 0: it tells none.
func memoryOf(name string) uint64 {
	text := strings.TrimRight(name[strings.LastIndex(name, "-")+1:], "ABCQ")
	gib, err := strconv.ParseUint(text, 10, 16)
	switch {
	case err != nil:
		return 0
	case gib == 0:
		return 512 << 20
	}
	return gib << 30
}

// textOf returns the text of a file without spaces around it; empty: it cannot be read.
func textOf(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// groupOf returns the IOMMU group of the device in the directory, or NoGroup.
func groupOf(dir string) int {
	group, err := strconv.Atoi(target(dir, "iommu_group"))
	if err != nil {
		return NoGroup
	}
	return group
}
