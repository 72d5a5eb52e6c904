// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// devicesPerSlice is the API's limit for slices whose devices have taints or counters. It always applies, so that a new
// taint cannot make a slice invalid (resource/v1: ResourceSliceMaxDevicesWithAdvancedFeatures).
const devicesPerSlice = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// maxString is the maximum length of a string or version attribute (resource/v1: DeviceAttributeMaxValueLength).
const maxString = resourceapi.DeviceAttributeMaxValueLength

// memoryUnit is the unit of published memory, and the step of requests for shares.
const memoryUnit = 1 << 20

// Memory returns the published memory of the GPU, in bytes.
func Memory(d gpu.Device) uint64 { return d.Memory / memoryUnit * memoryUnit }

// Type is a kind of device. Its Meaning is part of docs/reference/devices.md.
type Type struct {
	Name    gpu.Type
	Meaning string
}

// AllTypes are the published kinds of devices.
var AllTypes = []Type{
	{gpu.TypeGPU, "a whole physical GPU, named after its place on the PCI bus (with the domain in front when that is " +
		"not 0); the name survives reboots"},
	{gpu.TypeMIG, "a part of a GPU that hardware isolates, which exists, or which the driver makes when a claim gets " +
		"it; named after the GPU, the MIG profile and the memory slice where it begins"},
	{gpu.TypeVFIO, "a whole physical GPU for a virtual machine, bound to vfio-pci; named after the GPU; nobody can " +
		"have the GPU in another shape at the same time"},
	{gpu.TypeVGPU, "a part of a GPU for a virtual machine (NVIDIA vGPU), which exists, or which the driver makes " +
		"when a claim gets it; named after the GPU, and the UUID of the mediated device, the virtual function, or " +
		"the vGPU type"},
	{gpu.TypeMonitor, "all GPUs of the node at once, for those who look after them; always free; only with " +
		"`adminAccess`"},
}

// Taint is a device taint that the driver publishes, and its reason.
type Taint struct {
	Key     string
	Effect  resourceapi.DeviceTaintEffect
	Meaning string
	// on reports whether a device has it; nil: it is one of gpu.Device.Taints.
	on func(gpu.Device) bool
}

// The keys of taints of sick devices: see gpu.Device.Taints.
const (
	TaintLost        = "gpu.nvidia.com/gpu-lost"
	TaintXID         = "gpu.nvidia.com/xid"
	TaintUnhealthy   = "gpu.nvidia.com/unhealthy"
	TaintUnmonitored = "gpu.nvidia.com/unmonitored"
)

// AllTaints are the taints of devices that new claims cannot use.
var AllTaints = []Taint{
	{TaintLost, resourceapi.DeviceTaintEffectNoSchedule,
		"the GPU does not answer; until it is back, or, when NVML does not count it any more, until the claim that " +
			"holds it is released",
		func(d gpu.Device) bool { return d.Lost && (!d.ResetRequired || len(d.Taints) == 0) }},
	{"gpu.nvidia.com/mig-blocked", resourceapi.DeviceTaintEffectNoSchedule,
		"somebody's program on the GPU, a partition that is not the driver's, or a failure within the last " +
			"minute keeps the driver from making the partition, or from making the GPU whole again",
		func(d gpu.Device) bool { return d.Blocked != "" && d.Type != gpu.TypeVFIO && d.VGPU == nil }},
	{"gpu.nvidia.com/vfio-blocked", resourceapi.DeviceTaintEffectNoSchedule,
		"somebody's program on the GPU keeps the driver from binding it for a virtual machine",
		func(d gpu.Device) bool { return d.Blocked != "" && d.Type == gpu.TypeVFIO }},
	{"gpu.nvidia.com/vgpu-type", resourceapi.DeviceTaintEffectNoSchedule,
		"the GPU has vGPUs of another type, and it has those of one type at a time",
		func(d gpu.Device) bool { return d.Blocked != "" && d.VGPU != nil }},
	{TaintXID, resourceapi.DeviceTaintEffectNoSchedule,
		"an XID, the value, that is not the fault of a program; docs/reference/conditions.md says which and what " +
			"ends it, docs/operate/health.md how the node configuration makes it `NoExecute`", nil},
	{TaintUnhealthy, resourceapi.DeviceTaintEffectNoSchedule,
		"the GPU reports a problem, the value; see docs/reference/conditions.md", nil},
	{TaintUnmonitored, resourceapi.DeviceTaintEffectNone,
		"the GPU has no events, or they are not watched; `NoSchedule` while the plugin has closed NVML on request, " +
			"and while NVIDIA's driver cannot be used",
		nil},
}

// Pool is what slices of one pool have. It is that of Kubernetes' package resourceslice, which links the API client.
type Pool struct{ Slices []Slice }

// Slice is what one slice has.
type Slice struct {
	Devices        []resourceapi.Device
	SharedCounters []resourceapi.CounterSet
}

// Pools returns all that the node publishes, by name of the pool. The pool of the node's name has the GPUs, then
// partitions, GPUs for virtual machines and vGPUs, then counters. GPUs and counters have their own slices, so that a
// change of the others does not move them. A slice has at most 64 devices or 8 counter sets. A node without GPUs
// publishes one empty slice, which shows that the driver runs. The monitor device has a pool of its own: see
// MonitorPool.
func (inv Inventory) Pools(node string) map[string]Pool {
	all := countersOf(inv)
	var gpus, partitions []resourceapi.Device
	for _, d := range inv {
		if rank(d) > 0 {
			partitions = append(partitions, publish(d, all))
		} else {
			gpus = append(gpus, publish(d, all))
		}
	}
	pool := Pool{}
	for chunk := range slices.Chunk(gpus, devicesPerSlice) {
		pool.Slices = append(pool.Slices, Slice{Devices: chunk})
	}
	for chunk := range slices.Chunk(partitions, devicesPerSlice) {
		pool.Slices = append(pool.Slices, Slice{Devices: chunk})
	}
	for chunk := range slices.Chunk(counterSets(all), counterSetsPerSlice) {
		pool.Slices = append(pool.Slices, Slice{SharedCounters: chunk})
	}
	if len(pool.Slices) == 0 {
		pool.Slices = []Slice{{}}
	}
	pools := map[string]Pool{node: pool}
	if name := MonitorPool(node); len(inv) > 0 && len(name) <= resourceapi.PoolNameMaxLength {
		pools[name] = Pool{Slices: []Slice{{Devices: []resourceapi.Device{
			publish(inv.monitor(node), nil)}}}}
	}
	return pools
}

// SelectSlices returns the field selector of all slices of the driver on the node.
func SelectSlices(driver, node string) string {
	return fields.Set{resourceapi.ResourceSliceSelectorDriver: driver,
		resourceapi.ResourceSliceSelectorNodeName: node}.String()
}

// Slices returns the slices of the pools as package publish creates them, in the order of the names of the pools. They
// have no owner. The API server appends to their names, which begin with the number of the slice in its pool.
func Slices(driver, node string, pools map[string]Pool) []*resourceapi.ResourceSlice {
	var all []*resourceapi.ResourceSlice
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		for i, s := range pools[name].Slices {
			all = append(all, &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{GenerateName: SlicePrefix(i, driver, node, name) + node + "-"},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: driver,
					Pool: resourceapi.ResourcePool{Name: name, Generation: 1,
						ResourceSliceCount: int64(len(pools[name].Slices))},
					NodeName:       &node,
					Devices:        s.Devices,
					SharedCounters: s.SharedCounters,
				},
			})
		}
	}
	return all
}

// publish returns the device as an API object. It consumes counters of its GPU, if that has any.
func publish(d gpu.Device, all map[string]counters) resourceapi.Device {
	device := resourceapi.Device{Name: d.Name, Taints: taints(d), Attributes: attributes(d), Capacity: capacities(d)}
	if sharing(d) != gpu.Exclusive {
		device.AllowMultipleAllocations = ptr.To(true)
	}
	parent := gpu.ParentName(d.Name)
	exists := d.Partition != nil && d.Partition.Static || d.VGPU != nil && !d.VGPU.Made
	if of, ok := all[parent]; ok && !exists {
		device.ConsumesCounters = []resourceapi.DeviceCounterConsumption{
			{CounterSet: parent, Counters: consumed(d, of)},
		}
	}
	return device
}

func taints(d gpu.Device) []resourceapi.DeviceTaint {
	var all []resourceapi.DeviceTaint
	for _, t := range AllTaints {
		own := func(own gpu.Taint) bool { return own.Key == t.Key }
		if t.on != nil && t.on(d) && !slices.ContainsFunc(d.Taints, own) {
			all = append(all, resourceapi.DeviceTaint{Key: t.Key, Effect: t.Effect})
		}
	}
	for _, t := range d.Taints {
		taint := resourceapi.DeviceTaint{Key: t.Key, Value: t.Value, Effect: resourceapi.DeviceTaintEffect(t.Effect)}
		if !t.Since.IsZero() {
			taint.TimeAdded = &metav1.Time{Time: t.Since.Truncate(time.Second)} // the API's precision
		}
		all = append(all, taint)
	}
	return all
}
