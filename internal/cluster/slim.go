// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// possible marks a partition that the driver would create.
var possible = []resourceapi.DeviceCounterConsumption{{}}

// SlimSlice drops what the view does not need of a slice, to save memory. Devices of one kind share their attributes.
// Of the possible partitions, which differ only in placement, it keeps one of each kind. It also keeps the largest one
// of each GPU, if it has the largest profile of the model: it shows that the GPU exists and how large it is. A node
// with eight GPUs publishes more than 200 possible partitions. A device whose taint keeps pods away is kept, too.
func (v *View) SlimSlice(s *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	slim := &resourceapi.ResourceSlice{TypeMeta: s.TypeMeta, ObjectMeta: s.ObjectMeta}
	slim.ManagedFields = nil
	slim.Spec = resourceapi.ResourceSliceSpec{Driver: s.Spec.Driver, Pool: s.Spec.Pool, NodeName: s.Spec.NodeName}
	if !v.onNode(s) {
		return slim
	}
	keys := v.kindsOf(s.Spec.Devices)
	v.mu.Lock()
	defer v.mu.Unlock()
	var kinds []*DeviceKind
	largest := map[string]int{} // index of the device, by GPU
	for i, d := range s.Spec.Devices {
		kinds = append(kinds, v.intern(keys[i], &s.Spec.Devices[i]))
		v.learn(kinds[i].Product(), &s.Spec.Devices[i])
		name := gpu.ParentName(d.Name)
		if at, ok := largest[name]; !ok || kinds[i].Capacity("memory") > kinds[at].Capacity("memory") {
			largest[name] = i
		}
	}
	seen := map[*DeviceKind]bool{}
	for i, d := range s.Spec.Devices {
		kind := kinds[i]
		some := kind.isPart() && len(d.ConsumesCounters) > 0
		isLargest := largest[gpu.ParentName(d.Name)] == i && kind.Capacity("memory") >= v.largest[kind.Product()]
		if some && seen[kind] && !isLargest && !slices.ContainsFunc(d.Taints, Prevents) {
			continue
		}
		seen[kind] = seen[kind] || some
		short := resourceapi.Device{Name: d.Name, Taints: d.Taints,
			Attributes: kind.Device.Attributes, Capacity: kind.Device.Capacity,
			AllowMultipleAllocations: kind.Device.AllowMultipleAllocations}
		if some {
			short.ConsumesCounters = possible
		}
		if kind.Type() == gpu.TypeGPU {
			short.BindingConditions = placeOf(&s.Spec.Devices[i])
		}
		slim.Spec.Devices = append(slim.Spec.Devices, short)
	}
	return slim
}

// SlimClaim drops what the view does not need of a claim, to save memory.
func SlimClaim(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	slim := &resourceapi.ResourceClaim{TypeMeta: c.TypeMeta, ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace,
		Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion, CreationTimestamp: c.CreationTimestamp}}
	if c.Status.Allocation != nil {
		slim.Status.Allocation = &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: c.Status.Allocation.Devices.Results},
		}
		if o := metav1.GetControllerOf(c); o != nil && o.Kind == "Pod" &&
			len(validation.IsDNS1123Subdomain(o.Name)) == 0 { // who pays; anybody can write any name
			slim.OwnerReferences = []metav1.OwnerReference{{Kind: o.Kind, Name: o.Name}}
		}
		if value, ok := c.Annotations[resourceapi.ExtendedResourceClaimAnnotation]; ok { // its pod may be evicted
			slim.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: value}
			slim.Status.ReservedFor = c.Status.ReservedFor
		}
		for _, d := range c.Status.Devices {
			if idle := meta.FindStatusCondition(d.Conditions, gpu.IdleCondition); idle != nil &&
				idle.Status == metav1.ConditionTrue { // its pods may be evicted
				slim.Status.Devices = append(slim.Status.Devices, resourceapi.AllocatedDeviceStatus{Driver: d.Driver,
					Pool: d.Pool, Device: d.Device, ShareID: d.ShareID, Conditions: []metav1.Condition{{
						Type: idle.Type, Status: idle.Status, LastTransitionTime: idle.LastTransitionTime}}})
				slim.Status.ReservedFor = c.Status.ReservedFor
			}
		}
		return slim
	}
	room := maxSelectors
	for _, r := range c.Spec.Devices.Requests {
		if r.Exactly != nil {
			r.Exactly = ptr.To(*r.Exactly)
		}
		r.FirstAvailable = slices.Clone(r.FirstAvailable)
		slim.Spec.Devices.Requests = append(slim.Spec.Devices.Requests, r)
	}
	for _, s := range Subrequests(&slim.Spec) {
		*s.Selectors = slimSelectors(*s.Selectors, &room)
		if len(*s.Derived) > 0 {
			*s.Derived = []resourceapi.DeviceDerivedAttribute{{}} // only whether there are some
		}
		var kept []resourceapi.DeviceToleration
		for _, t := range *s.Tolerations {
			if room -= tolerationSize + len(t.Key) + len(t.Value); room >= 0 {
				kept = append(kept, t)
			}
		}
		*s.Tolerations = kept
	}
	for _, c := range c.Spec.Devices.Constraints {
		room -= constraintSize
		for _, request := range c.Requests {
			room -= len(request)
		}
		if room < 0 {
			c = resourceapi.DeviceConstraint{}
		}
		slim.Spec.Devices.Constraints = append(slim.Spec.Devices.Constraints, c)
	}
	if configs := (&resourceapi.DeviceClaim{Config: c.Spec.Devices.Config}); configs.Size() <= min(room, maxConfigs) {
		slim.Spec.Devices.Config = c.Spec.Devices.Config
	} else if len(c.Spec.Devices.Config) > 0 {
		slim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{}}
	}
	return slim
}

// maxSelectors is how many bytes of selectors, tolerations, constraints and configurations are kept of a pending claim.
// One with more is thought to accept more, and to tolerate less; of a constraint, and of configurations, it is known
// that there are some.
const maxSelectors = 16 << 10

// maxConfigs is how many bytes of configurations are kept of a claim: all or none, because the last one rules.
const maxConfigs = 4 << 10

// Memory of a toleration without its texts, and of a constraint without the requests, in bytes.
const tolerationSize, constraintSize = 72, 200

// slimSelectors returns the selectors that Accepts evaluates, as far as there is room, and an empty one for the others.
// Claims of one template share their text.
func slimSelectors(all []resourceapi.DeviceSelector, room *int) []resourceapi.DeviceSelector {
	var kept []resourceapi.DeviceSelector
	for _, s := range all {
		if s.CEL == nil || len(s.CEL.Expression) > min(maxExpression, *room) {
			continue
		}
		*room -= len(s.CEL.Expression)
		kept = append(kept, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
			Expression: unique.Make(s.CEL.Expression).Value()}})
	}
	return append(kept, make([]resourceapi.DeviceSelector, min(1, len(all)-len(kept)))...)
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

// PodRequests returns what the pod requests of its node.
func PodRequests(p *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{UseStatusResources: true})
}
