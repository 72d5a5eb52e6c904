// SPDX-License-Identifier: Apache-2.0

package node

import (
	"regexp"
	"slices"
	"syscall"
)

// VGPUType is a type of mediated devices that the simulated driver for hosts of vGPUs offers.
type VGPUType struct {
	ID     string // the name of its directory in sysfs
	Name   string
	Memory uint64 // frame buffer, in MiB
	Max    int    // how many a GPU can have
}

// vgpuTypes are the types of models, on machines whose driver is the one for hosts of vGPUs. They are the workstation
// types of NVIDIA's vGPU user guide; their numbers are an assumption. The real A16 has them on virtual functions.
var vgpuTypes = map[string][]VGPUType{
	"NVIDIA A16": {
		{"nvidia-701", "NVIDIA A16-1Q", 1 << 10, 16},
		{"nvidia-702", "NVIDIA A16-2Q", 2 << 10, 8},
		{"nvidia-703", "NVIDIA A16-4Q", 4 << 10, 4},
		{"nvidia-704", "NVIDIA A16-8Q", 8 << 10, 2},
		{"nvidia-705", "NVIDIA A16-16Q", 16 << 10, 1},
	},
}

// VGPU is a mediated device of a GPU.
type VGPU struct {
	UUID, Type string // Type is the ID of its type
	Group      int    // its IOMMU group
	Open       bool   `json:",omitempty"` // a program has it open
}

// firstVGPUGroup is the first IOMMU group of mediated devices.
const firstVGPUGroup = 60

// VGPUTypes returns the types of the GPU; none if it is bound to another driver.
func (c GPU) VGPUTypes() []VGPUType {
	if c.Binding().Driver != NVIDIADriver {
		return nil
	}
	name, _ := c.Calls.GetName.Get()
	return vgpuTypes[name]
}

// AvailableVGPUs returns how many more mediated devices of the type the GPU can have: all are of one type.
func (c GPU) AvailableVGPUs(t VGPUType) int {
	for _, d := range c.State.VGPUs {
		if d.Type != t.ID {
			return 0
		}
	}
	return t.Max - len(c.State.VGPUs)
}

var uuidText = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// createVGPU plays the kernel for a write into the file create of a type.
func (n *Node) createVGPU(at, id, uuid string) error {
	if !uuidText.MatchString(uuid) {
		return syscall.EINVAL
	}
	return n.Change(func(s *State) error {
		group := firstVGPUGroup
		for _, g := range s.GPUs {
			for _, d := range g.VGPUs {
				if d.UUID == uuid {
					return syscall.EEXIST
				}
				group = max(group, d.Group+1)
			}
		}
		for _, c := range n.last.GPUs { // Change has just read it and holds the lock
			types := c.VGPUTypes()
			i := slices.IndexFunc(types, func(t VGPUType) bool { return t.ID == id })
			if c.PCI.Address.String() != at || i < 0 {
				continue
			}
			if c.AvailableVGPUs(types[i]) < 1 {
				return syscall.ENOSPC
			}
			state := &s.GPUs[c.entry]
			state.VGPUs = append(state.VGPUs, VGPU{UUID: uuid, Type: id, Group: group})
			return nil
		}
		return syscall.ENOENT
	})
}

// removeVGPU plays the kernel for a write into the file remove of a mediated device.
func (n *Node) removeVGPU(uuid string) error {
	return n.changeVGPU(uuid, func(all []VGPU, i int) ([]VGPU, error) {
		if all[i].Open {
			return nil, syscall.EBUSY
		}
		return slices.Delete(all, i, i+1), nil
	})
}

// OpenVGPU lets a program have the mediated device open, or not any more.
func (n *Node) OpenVGPU(uuid string, open bool) error { //nolint:revive // a state
	return n.changeVGPU(uuid, func(all []VGPU, i int) ([]VGPU, error) {
		all[i].Open = open
		return all, nil
	})
}

// changeVGPU calls f with the mediated devices of a GPU and the index of the one with the UUID. Error: ENOENT.
func (n *Node) changeVGPU(uuid string, f func([]VGPU, int) ([]VGPU, error)) error {
	return n.Change(func(s *State) (err error) {
		for i := range s.GPUs {
			all := &s.GPUs[i].VGPUs
			if at := slices.IndexFunc(*all, func(d VGPU) bool { return d.UUID == uuid }); at >= 0 {
				*all, err = f(*all, at)
				return err
			}
		}
		return syscall.ENOENT
	})
}
