// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// frameBuffer is the counter of a GPU on which the driver makes vGPUs: bytes.
const frameBuffer = "frame-buffer"

// vgpus returns the vGPUs that claims can get: those that somebody else has made, then those that the driver can make
// beside them, the smallest first. A GPU has vGPUs of one type at a time, so others are Blocked while there is one. The
// driver makes none on a GPU on which it makes MIG partitions.
func vgpus(d gpu.Device) []gpu.Device {
	if d.VGPUs == nil || d.Use.NoPassthrough || d.Use.SharedOnly {
		return nil
	}
	var all []gpu.Device
	for _, v := range d.VGPUs.Foreign() {
		all = append(all, vgpu(d, gpu.VGPUName(d.Name, v), v))
	}
	if d.MIG.Enabled || d.Use.Partitions == gpu.PartitionsDynamic {
		return all
	}
	types := slices.Clone(d.VGPUs.Types)
	slices.SortStableFunc(types, func(a, b gpu.VGPUType) int { return cmp.Compare(a.Memory, b.Memory) })
	for _, t := range types {
		blocked := ""
		for _, v := range d.VGPUs.Existing {
			if v.Type.Name != t.Name {
				blocked = fmt.Sprintf("the GPU has vGPUs of type %s", v.Type.Name)
			}
		}
		for n := range t.Max { // those of somebody else take frame buffer, and not names that claims may hold
			one := vgpu(d, gpu.PossibleVGPUName(d.Name, t, n),
				gpu.VGPU{Parent: d.UUID, Type: t, Function: d.PCI, Group: -1, Made: true})
			one.Blocked = blocked
			all = append(all, one)
		}
	}
	return all
}

// vgpu returns the device of a vGPU. It has the part of the GPU's speed that it has of the memory, though it may use
// more while the others do not. It is exclusive to one claim.
func vgpu(d gpu.Device, name string, v gpu.VGPU) gpu.Device {
	part, all := int(v.Type.Memory>>20), int(max(d.Memory, v.Type.Memory)>>20)
	one := withOwnDomains(d)
	one.Name, one.Type, one.UUID, one.Memory, one.PCI = name, gpu.TypeVGPU, gpu.UUID(name), v.Type.Memory, v.Function
	one.Product.Multiprocessors = share(d.Product.Multiprocessors, part, all)
	one.Product.PeakCompute = share(d.Product.PeakCompute, part, all)
	one.Product.MemoryBandwidth = share(d.Product.MemoryBandwidth, part, all)
	one.MIG, one.VFIO, one.VGPU, one.VGPUs, one.Blocked = gpu.MIG{Capable: d.MIG.Capable}, nil, &v, nil, ""
	one.Use = gpu.SharingMode{Sharing: gpu.Exclusive, Isolation: gpu.IsolationNone, Partitions: d.Use.Partitions}
	return one
}

// addFrameBuffer adds the counter to those of the GPUs on which the driver makes vGPUs: what the most vGPUs of a type
// have together, without those that somebody else has made.
func addFrameBuffer(inv Inventory, all map[string]counters) {
	most, taken := map[string]uint64{}, map[string]uint64{}
	for _, d := range inv {
		switch name := gpu.ParentName(d.Name); {
		case d.VGPU == nil:
		case d.VGPU.Made:
			most[name] = max(most[name], d.VGPU.Type.Memory*uint64(d.VGPU.Type.Max))
		default:
			taken[name] += d.VGPU.Type.Memory
		}
	}
	for name, bytes := range most {
		if all[name] == nil {
			all[name] = counters{}
		}
		all[name][frameBuffer] = bytesCounter(bytes - min(bytes, taken[name]))
	}
}

func bytesCounter(bytes uint64) resourceapi.Counter {
	return resourceapi.Counter{Value: *resource.NewQuantity(int64(bytes), resource.BinarySI)}
}
