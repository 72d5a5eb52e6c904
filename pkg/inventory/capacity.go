// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Capacity is a published device capacity. Its Meaning is part of docs/reference/devices.md.
type Capacity struct {
	Name    resourceapi.QualifiedName
	Unit    string
	Meaning string
	of      func(gpu.Device) *resourceapi.DeviceCapacity // nil: this device has none
}

// AllCapacities are the capacities of GPUs and partitions. A capacity of a device that can be shared has a request
// policy, because without one the first claim would consume all of it.
var AllCapacities = append([]Capacity{
	{"memory", "bytes", "as NVML reports it, rounded down to 1 MiB",
		func(d gpu.Device) *resourceapi.DeviceCapacity {
			all := resource.NewQuantity(int64(Memory(d)), resource.BinarySI)
			if sharing(d) == gpu.Unlimited {
				return capacity(d, all, steps(0, 0, memoryUnit, all))
			}
			return capacity(d, all, steps(all.Value(), memoryUnit, memoryUnit, all))
		}},
	{"cores", "percent", "of the multiprocessors; a fractional GPU can be asked for some of them, unless its " +
		"isolation is `cgroup`, and for a claim that does not ask there is no limit",
		func(d gpu.Device) *resourceapi.DeviceCapacity {
			if d.Partition != nil || d.Type == gpu.TypeVFIO || d.VGPU != nil {
				return nil
			}
			all, policy := resource.NewQuantity(100, resource.DecimalSI), unconsumed(resource.DecimalSI)
			if isolation(d) != gpu.IsolationCgroup { // that limits memory only
				policy = steps(0, 0, 1, all)
			}
			return capacity(d, all, policy)
		}},
	{"shares", "claims", "how many may have a replicated GPU at once; only such GPUs have it, and a claim gets one " +
		"unless it asks for more, which `onePerClaim` excludes",
		func(d gpu.Device) *resourceapi.DeviceCapacity {
			if sharing(d) != gpu.Replicated {
				return nil
			}
			all := resource.NewQuantity(int64(d.Use.Replicas), resource.DecimalSI)
			most := all
			if d.Use.OnePerClaim {
				most = resource.NewQuantity(1, resource.DecimalSI)
			}
			return &resourceapi.DeviceCapacity{Value: *all, RequestPolicy: steps(1, 1, 1, most)}
		}},
}, engineCapacities()...)

// engineCapacities returns the engines of partitions as capacities. A partition without an engine has 0, because
// selectors may ask for it.
func engineCapacities() []Capacity {
	var all []Capacity
	for _, e := range engines {
		all = append(all, Capacity{e.capacity, e.unit, e.meaning, func(d gpu.Device) *resourceapi.DeviceCapacity {
			if d.Partition == nil {
				return nil
			}
			return &resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(e.of(d.Partition.Engines)),
				resource.DecimalSI)}
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

// capacity returns a capacity of the device. A fractional or unlimited GPU has the request policy. Claims consume
// nothing of a replicated GPU, of unknown memory, or of the monitor device, whose value is 0.
func capacity(d gpu.Device, all *resource.Quantity,
	policy *resourceapi.CapacityRequestPolicy) *resourceapi.DeviceCapacity {
	switch {
	case d.Type == gpu.TypeMonitor:
		return &resourceapi.DeviceCapacity{Value: *resource.NewQuantity(0, all.Format),
			RequestPolicy: unconsumed(all.Format)}
	case sharing(d) == gpu.Replicated || sharing(d) == gpu.Unlimited && all.IsZero():
		return &resourceapi.DeviceCapacity{Value: *all, RequestPolicy: unconsumed(all.Format)}
	case sharing(d) == gpu.Exclusive:
		return &resourceapi.DeviceCapacity{Value: *all}
	}
	return &resourceapi.DeviceCapacity{Value: *all, RequestPolicy: policy}
}

// unconsumed returns the request policy of a capacity of which claims consume nothing.
func unconsumed(format resource.Format) *resourceapi.CapacityRequestPolicy {
	none := resource.NewQuantity(0, format)
	return &resourceapi.CapacityRequestPolicy{Default: none, ValidValues: []resource.Quantity{*none}}
}

// steps returns a request policy with the default otherwise, and a range from least to all in steps.
func steps(otherwise, least, step int64, all *resource.Quantity) *resourceapi.CapacityRequestPolicy {
	return &resourceapi.CapacityRequestPolicy{
		Default: resource.NewQuantity(otherwise, all.Format),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{
			Min: resource.NewQuantity(least, all.Format), Max: ptr.To(all.DeepCopy()), Step: resource.NewQuantity(step,
				all.Format)},
	}
}

// sharing returns how the device may be shared. A fractional GPU of unknown memory is exclusive.
func sharing(d gpu.Device) gpu.Sharing {
	if d.Type != gpu.TypeMonitor && d.Use.Sharing == gpu.Fractional && Memory(d) == 0 {
		return gpu.Exclusive
	}
	return d.Use.Sharing
}

// isolation returns what enforces a share of the GPU; none if it has no shares, or its shares have no limits.
func isolation(d gpu.Device) gpu.Isolation {
	if s := sharing(d); s == gpu.Exclusive || s == gpu.Unlimited {
		return gpu.IsolationNone
	}
	return d.Use.Isolation
}
