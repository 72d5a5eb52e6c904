// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// devicesPerSlice is the limit of the API for slices whose devices have taints or counters; keeping to it always means that a
// taint never makes a slice invalid (resource/v1: ResourceSliceMaxDevicesWithAdvancedFeatures).
const devicesPerSlice = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// maxString is the longest string or version that an attribute can have (resource/v1: DeviceAttributeMaxValueLength).
const maxString = resourceapi.DeviceAttributeMaxValueLength

// lostTaint keeps new claims away from a GPU that does not answer.
const lostTaint = "gpu.nvidia.com/gpu-lost"

// memoryUnit is what published memory is rounded down to, and the step in which shares can be asked for.
const memoryUnit = 1 << 20

// Memory is what is published of the GPU's memory, in bytes.
func Memory(d gpu.Device) uint64 { return d.Memory / memoryUnit * memoryUnit }

// Pool is everything the node of that name publishes, in slices of at most 64 devices: its GPUs, then the monitor device. A node
// without GPUs has nothing to monitor and publishes one empty slice, which says that the driver is there.
func (inv Inventory) Pool(node string) resourceslice.Pool {
	var devices []resourceapi.Device
	for _, d := range inv {
		devices = append(devices, publish(d))
	}
	if len(inv) > 0 {
		devices = append(devices, publishMonitor(node))
	}
	pool := resourceslice.Pool{}
	for chunk := range slices.Chunk(devices, devicesPerSlice) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: chunk})
	}
	if len(pool.Slices) == 0 {
		pool.Slices = []resourceslice.Slice{{}}
	}
	return pool
}

// attributes are the same set for every device, because a selector that meets a device without one fails for the whole pod; only
// the standard ones are left out where the machine does not know them.
func attributes(d gpu.Device) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"type":                  text(string(d.Type)),
		"uuid":                  text(string(d.UUID)),
		"parentUUID":            text(string(d.UUID)),
		"productName":           text(d.Product.Name),
		"brand":                 text(d.Product.Brand),
		"architecture":          text(d.Product.Architecture),
		"cudaComputeCapability": version(d.Product.ComputeCapability.Major, d.Product.ComputeCapability.Minor, 0),
		"driverVersion":         versionOf(d.DriverVersion),
		"cudaDriverVersion":     version(d.CUDAVersion.Major, d.CUDAVersion.Minor, 0),
		"index":                 number(d.Index),
		"minor":                 number(d.Minor),
		"profile":               text(""),
		"migCapable":            {BoolValue: ptr.To(d.MIG)},
		"addressingMode":        text(string(d.Addresses)),
		"multiprocessors":       number(d.Product.Multiprocessors),
		"memoryBandwidth":       number(d.Product.MemoryBandwidth),
		"peakCompute":           number(d.Product.PeakCompute),
		"nvlinkDomain":          text(d.Topology.NVLinkDomain),
		"fabricDomain":          text(d.Topology.FabricDomain),
		"sharing":               text(sharing(d).String()),
		"isolation":             text(isolation(d)),
		"sharedOnly":            {BoolValue: ptr.To(d.Use.SharedOnly)},
		deviceattribute.StandardDeviceAttributePCIBusID: text(d.PCI.String()),
	}
	if d.PCIeRoot != "" {
		attributes[deviceattribute.StandardDeviceAttributePCIeRoot] = text(d.PCIeRoot)
	}
	if d.NUMANode != gpu.NoNUMANode {
		attributes[deviceattribute.StandardDeviceAttributeNUMANode] = number(d.NUMANode)
	}
	return attributes
}

// Attributes are what the node publishes the device of that name with, for the container that uses it. Attributes of our own have
// no domain. It is nil when there is no such device.
func (inv Inventory) Attributes(node, device string) map[string]resourceapi.DeviceAttribute {
	var published map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
	if d, ok := inv.Find(device); ok {
		published = attributes(d)
	} else if device == Monitor {
		published = publishMonitor(node).Attributes
	} else {
		return nil
	}
	out := map[string]resourceapi.DeviceAttribute{}
	for name, value := range published {
		out[string(name)] = value
	}
	return out
}

// sharing is how the GPU may be shared. One whose memory nobody knows cannot be divided by it.
func sharing(d gpu.Device) gpu.Sharing {
	if d.Use.Sharing == gpu.Fractional && Memory(d) == 0 {
		return gpu.Exclusive
	}
	return d.Use.Sharing
}

// isolation is what enforces a share of the GPU: nothing where there are no shares.
func isolation(d gpu.Device) string {
	if sharing(d) == gpu.Exclusive {
		return gpu.IsolationNone.String()
	}
	return d.Use.Isolation.String()
}

// publish writes one GPU as a device of a slice.
func publish(d gpu.Device) resourceapi.Device {
	device := resourceapi.Device{
		Name:       d.Name,
		Taints:     taints(d),
		Attributes: attributes(d),
		Capacity:   capacity(d),
	}
	if sharing(d) != gpu.Exclusive {
		device.AllowMultipleAllocations = ptr.To(true)
	}
	return device
}

// capacity is what claims may ask for. A capacity of a device that can be shared has a policy: without one, the first claim would
// consume all of it.
func capacity(d gpu.Device) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	memory := resource.NewQuantity(int64(Memory(d)), resource.BinarySI)
	cores := resource.NewQuantity(100, resource.DecimalSI)
	switch sharing(d) {
	case gpu.Replicated:
		replicas := resource.NewQuantity(int64(d.Use.Replicas), resource.DecimalSI)
		return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: *memory, RequestPolicy: nothing(resource.BinarySI)},
			"cores":  {Value: *cores, RequestPolicy: nothing(resource.DecimalSI)},
			"shares": {Value: *replicas, RequestPolicy: steps(1, 1, 1, replicas)},
		}
	case gpu.Exclusive:
		return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: *memory}, "cores": {Value: *cores}}
	}
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		"memory": {Value: *memory, RequestPolicy: steps(memory.Value(), memoryUnit, memoryUnit, memory)},
		"cores":  {Value: *cores, RequestPolicy: steps(0, 0, 1, cores)},
	}
}

// steps is the policy of a capacity of which a request may have as much as it asks for, in steps from the least there is.
func steps(otherwise, least, step int64, all *resource.Quantity) *resourceapi.CapacityRequestPolicy {
	return &resourceapi.CapacityRequestPolicy{
		Default: resource.NewQuantity(otherwise, all.Format),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{
			Min: resource.NewQuantity(least, all.Format), Max: ptr.To(all.DeepCopy()), Step: resource.NewQuantity(step, all.Format)},
	}
}

func taints(d gpu.Device) []resourceapi.DeviceTaint {
	if !d.Lost {
		return nil
	}
	return []resourceapi.DeviceTaint{{Key: lostTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
}

func text(s string) resourceapi.DeviceAttribute {
	if len(s) > maxString {
		s = strings.ToValidUTF8(s[:maxString], "")
	}
	return resourceapi.DeviceAttribute{StringValue: &s}
}

func number(n int) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{IntValue: ptr.To(int64(n))}
}

func version(major, minor, patch int) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{VersionValue: ptr.To(fmt.Sprintf("%d.%d.%d", major, minor, patch))}
}

// versionOf reads up to three numbers out of a version as NVIDIA writes it and drops their leading zeros, which semver refuses:
// "580.95.05" becomes "580.95.5". What is no number counts as 0, because an invalid version makes the API server refuse the slice.
func versionOf(s string) resourceapi.DeviceAttribute {
	var n [3]int
	for i, part := range strings.SplitN(s, ".", 3) {
		end := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' })
		if end >= 0 {
			part = part[:end]
		}
		n[i], _ = strconv.Atoi(part)
	}
	return version(n[0], n[1], n[2])
}
