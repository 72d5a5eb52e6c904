// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Current returns the slices in the newest generation of each pool: the others are obsolete.
func Current(all []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	type pool struct{ driver, name string } // a name is unique among the pools of a driver
	newest := map[pool]int64{}
	for _, s := range all {
		of := pool{s.Spec.Driver, s.Spec.Pool.Name}
		newest[of] = max(newest[of], s.Spec.Pool.Generation)
	}
	var current []*resourceapi.ResourceSlice
	for _, s := range all {
		if s.Spec.Pool.Generation == newest[pool{s.Spec.Driver, s.Spec.Pool.Name}] {
			current = append(current, s)
		}
	}
	return current
}

// Since returns when the claim got its devices, or when it was created if Kubernetes has not stored that.
func Since(claim *resourceapi.ResourceClaim) *metav1.Time {
	if a := claim.Status.Allocation; a != nil && a.AllocationTimestamp != nil {
		return a.AllocationTimestamp
	}
	if claim.CreationTimestamp.IsZero() {
		return nil
	}
	return &claim.CreationTimestamp
}

// Parts are attributes, capacity and counters of devices. Equal devices share them, so that a large cluster needs
// little memory.
type Parts map[string]resourceapi.Device

// Share replaces the parts of the device by equal ones of an earlier device, if there is one. They must not be changed
// then.
func (p Parts) Share(d *resourceapi.Device) {
	parts := resourceapi.Device{Attributes: d.Attributes, Capacity: d.Capacity, ConsumesCounters: d.ConsumesCounters}
	key, err := parts.Marshal()
	if err != nil {
		return // it only needs more memory
	}
	known, ok := p[string(key)]
	if !ok {
		p[string(key)] = parts
		return
	}
	d.Attributes, d.Capacity, d.ConsumesCounters = known.Attributes, known.Capacity, known.ConsumesCounters
}

// FullName returns the name of the resource with its API group.
func FullName(resource string) string {
	if group := groups[resource]; group != "" {
		return resource + "." + group
	}
	return resource
}
