// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// devicesPerSlice is the limit of the API for slices whose devices have taints or counters; keeping to it always means that a
// taint never makes a slice invalid (resource/v1: ResourceSliceMaxDevicesWithAdvancedFeatures).
const devicesPerSlice = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// maxString is the longest string or version that an attribute can have (resource/v1: DeviceAttributeMaxValueLength).
const maxString = resourceapi.DeviceAttributeMaxValueLength

// memoryUnit is what published memory is rounded down to, and the step in which shares can be asked for.
const memoryUnit = 1 << 20

// Memory is what is published of the GPU's memory, in bytes.
func Memory(d gpu.Device) uint64 { return d.Memory / memoryUnit * memoryUnit }

// Type is a kind of device, and what it is for.
type Type struct {
	Name    gpu.Type
	Meaning string
}

// AllTypes are the kinds of devices that are published.
var AllTypes = []Type{
	{gpu.TypeGPU, "a whole physical GPU, named after its place on the PCI bus (with the domain in front when that is not 0); the name survives reboots"},
	{gpu.TypeMIG, "a part of a GPU with hardware walls, which exists, or which the driver makes when a claim gets it; named after the GPU, the MIG profile and the memory slice where it begins"},
	{gpu.TypeMonitor, "all GPUs of the node at once, for those who look after them; always free; only with `adminAccess`"},
}

// Taint is one that a device can be published with, and why it is.
type Taint struct {
	Key     string
	Effect  resourceapi.DeviceTaintEffect
	Meaning string
	on      func(gpu.Device) bool
}

// AllTaints keep new claims away from devices that others may still hold.
var AllTaints = []Taint{
	{"gpu.nvidia.com/gpu-lost", resourceapi.DeviceTaintEffectNoSchedule,
		"the GPU does not answer; until it is back, or, when NVML does not count it any more, until the claim that holds it is released",
		func(d gpu.Device) bool { return d.Lost }},
	{"gpu.nvidia.com/mig-blocked", resourceapi.DeviceTaintEffectNoSchedule,
		"somebody's program on the GPU, or a partition that is not the driver's, keeps the driver from making the partition, or from making the GPU whole again",
		func(d gpu.Device) bool { return d.Blocked != "" }},
}

// Pool is everything the node of that name publishes: its GPUs and the monitor device, then partitions, then the counters that tie them
// together, none in a slice with another, so that one of them that comes or goes moves no other. A slice has at most 64 devices or 8
// sets of counters. A node without GPUs has nothing to monitor and publishes one empty slice, which says that the driver is there.
func (inv Inventory) Pool(node string) resourceslice.Pool {
	all := countersOf(inv)
	var gpus, partitions []resourceapi.Device
	for _, d := range inv {
		if d.Partition != nil {
			partitions = append(partitions, publish(d, all))
		} else {
			gpus = append(gpus, publish(d, all))
		}
	}
	if len(inv) > 0 {
		gpus = append(gpus, publishMonitor(node))
	}
	pool := resourceslice.Pool{}
	for chunk := range slices.Chunk(gpus, devicesPerSlice) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: chunk})
	}
	for chunk := range slices.Chunk(partitions, devicesPerSlice) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: chunk})
	}
	for chunk := range slices.Chunk(counterSets(all), counterSetsPerSlice) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{SharedCounters: chunk})
	}
	if len(pool.Slices) == 0 {
		pool.Slices = []resourceslice.Slice{{}}
	}
	return pool
}

// publish writes one device of a slice. It consumes of its GPU's counters, if that has some.
func publish(d gpu.Device, all map[string]counters) resourceapi.Device {
	device := resourceapi.Device{Name: d.Name, Taints: taints(d), Attributes: attributes(d), Capacity: capacities(d)}
	if sharing(d) != gpu.Exclusive {
		device.AllowMultipleAllocations = ptr.To(true)
	}
	parent := gpu.ParentName(d.Name)
	if of, ok := all[parent]; ok && (d.Partition == nil || !d.Partition.Static) {
		device.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: parent, Counters: taken(d, of)}}
	}
	return device
}

func taints(d gpu.Device) []resourceapi.DeviceTaint {
	var all []resourceapi.DeviceTaint
	for _, t := range AllTaints {
		if t.on(d) {
			all = append(all, resourceapi.DeviceTaint{Key: t.Key, Effect: t.Effect})
		}
	}
	return all
}
