// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Capacity is one of those that devices are published with.
type Capacity struct {
	Name    resourceapi.QualifiedName
	Unit    string
	Meaning string
	of      func(gpu.Device) *resourceapi.DeviceCapacity // nil: this device has none
}

// AllCapacities are those of GPUs and of partitions. A capacity of a device that can be shared has a policy: without one, the first claim would consume
// all of it.
var AllCapacities = append([]Capacity{
	{"memory", "bytes", "as NVML reports it, rounded down to 1 MiB; a fractional GPU can be asked for some of it, in steps of 1Mi, and a claim that does not ask gets all of it",
		func(d gpu.Device) *resourceapi.DeviceCapacity {
			all := resource.NewQuantity(int64(Memory(d)), resource.BinarySI)
			return capacity(d, all, steps(all.Value(), memoryUnit, memoryUnit, all))
		}},
	{"cores", "percent", "of the multiprocessors; a fractional GPU can be asked for some of them, and for a claim that does not ask there is no limit",
		func(d gpu.Device) *resourceapi.DeviceCapacity {
			if d.Partition != nil {
				return nil
			}
			all := resource.NewQuantity(100, resource.DecimalSI)
			return capacity(d, all, steps(0, 0, 1, all))
		}},
	{"shares", "claims", "how many may have a replicated GPU at once; only such GPUs have it, and a claim gets one unless it asks for more",
		func(d gpu.Device) *resourceapi.DeviceCapacity {
			if sharing(d) != gpu.Replicated {
				return nil
			}
			all := resource.NewQuantity(int64(d.Use.Replicas), resource.DecimalSI)
			return &resourceapi.DeviceCapacity{Value: *all, RequestPolicy: steps(1, 1, 1, all)}
		}},
}, engineCapacities()...)

// engineCapacities are those of what a partition has to itself, also where it has none of it: a selector may ask.
func engineCapacities() []Capacity {
	var all []Capacity
	for _, e := range engines {
		all = append(all, Capacity{e.capacity, e.unit, e.meaning, func(d gpu.Device) *resourceapi.DeviceCapacity {
			if d.Partition == nil {
				return nil
			}
			return &resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(e.of(d.Partition.Engines)), resource.DecimalSI)}
		}})
	}
	return all
}

func capacities(d gpu.Device) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	all := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
	for _, c := range AllCapacities {
		if has := c.of(d); has != nil {
			all[c.Name] = *has
		}
	}
	return all
}

// capacity is what a GPU has of something. A fractional one gives of it by the policy. A replicated one and the monitor device only
// tell how much there is: the monitor has nothing.
func capacity(d gpu.Device, all *resource.Quantity, policy *resourceapi.CapacityRequestPolicy) *resourceapi.DeviceCapacity {
	none := resource.NewQuantity(0, all.Format)
	untouched := &resourceapi.CapacityRequestPolicy{Default: none, ValidValues: []resource.Quantity{*none}}
	switch {
	case d.Type == gpu.TypeMonitor:
		return &resourceapi.DeviceCapacity{Value: *none, RequestPolicy: untouched}
	case sharing(d) == gpu.Replicated:
		return &resourceapi.DeviceCapacity{Value: *all, RequestPolicy: untouched}
	case sharing(d) == gpu.Exclusive:
		return &resourceapi.DeviceCapacity{Value: *all}
	}
	return &resourceapi.DeviceCapacity{Value: *all, RequestPolicy: policy}
}

// steps is the policy of a capacity of which a request may have as much as it asks for, in steps from the least there is.
func steps(otherwise, least, step int64, all *resource.Quantity) *resourceapi.CapacityRequestPolicy {
	return &resourceapi.CapacityRequestPolicy{
		Default: resource.NewQuantity(otherwise, all.Format),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{
			Min: resource.NewQuantity(least, all.Format), Max: ptr.To(all.DeepCopy()), Step: resource.NewQuantity(step, all.Format)},
	}
}

// sharing is how the device may be shared: the monitor by anybody, and a GPU whose memory nobody knows cannot be divided by it.
func sharing(d gpu.Device) gpu.Sharing {
	if d.Type != gpu.TypeMonitor && d.Use.Sharing == gpu.Fractional && Memory(d) == 0 {
		return gpu.Exclusive
	}
	return d.Use.Sharing
}

// isolation is what enforces a share of the GPU: nothing where there are no shares.
func isolation(d gpu.Device) gpu.Isolation {
	if sharing(d) == gpu.Exclusive {
		return gpu.IsolationNone
	}
	return d.Use.Isolation
}
