// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"
)

// Tainted returns the slices with the taints that the rules add, as the scheduler sees them. Slices that a rule changes
// are copied.
func Tainted(all []*resourceapi.ResourceSlice, rules []*resourceapi.DeviceTaintRule) []*resourceapi.ResourceSlice {
	all = slices.Clone(all)
	for i, original := range all {
		for _, rule := range rules {
			if !Selects(rule, original.Spec.Driver, original.Spec.Pool.Name, named(rule)) {
				continue // there can be many rules
			}
			for d := range original.Spec.Devices {
				if !Selects(rule, original.Spec.Driver, original.Spec.Pool.Name, original.Spec.Devices[d].Name) {
					continue
				}
				if all[i] == original {
					all[i] = original.DeepCopy()
				}
				device := &all[i].Spec.Devices[d]
				device.Taints = append(device.Taints, rule.Spec.Taint)
			}
		}
	}
	return all
}

// Selects reports whether there is a rule, and it is for the device.
func Selects(rule *resourceapi.DeviceTaintRule, driver, pool, device string) bool {
	if rule == nil || rule.Spec.DeviceSelector == nil { // such a rule selects nothing
		return false
	}
	meets := func(criterion *string, value string) bool { return criterion == nil || *criterion == value }
	s := rule.Spec.DeviceSelector
	return meets(s.Driver, driver) && meets(s.Pool, pool) && meets(s.Device, device)
}

// named returns the device that the rule names; empty: it names none.
func named(rule *resourceapi.DeviceTaintRule) string {
	if rule.Spec.DeviceSelector == nil {
		return ""
	}
	return ptr.Deref(rule.Spec.DeviceSelector.Device, "")
}

// ReservedTaint is the key of the taint with which kubectl gpu reserve keeps GPUs. The value is who they are kept for.
const ReservedTaint = "gpu.nvidia.com/reserved"

// KeptFor returns who the taint keeps a device for; empty: it does not do that.
func KeptFor(t resourceapi.DeviceTaint) string {
	if t.Key != ReservedTaint || !Prevents(t) {
		return ""
	}
	return t.Value
}

// PreemptionTaint is the key of the taint with which the controller keeps devices for a pod of higher priority. The
// value is the UID of the pod.
const PreemptionTaint = "gpu.nvidia.com/preemption"

// WithoutTokens returns the spec without what it tolerates for one pod alone. While devices are kept for a pod, what is
// found out for an equal one may so be wrong about these devices.
func WithoutTokens(spec resourceapi.ResourceClaimSpec) resourceapi.ResourceClaimSpec {
	spec = *spec.DeepCopy()
	for _, s := range Subrequests(&spec) {
		*s.Tolerations = slices.DeleteFunc(*s.Tolerations, func(of resourceapi.DeviceToleration) bool {
			return of.Key == PreemptionTaint
		})
	}
	return spec
}

// Keeps reports whether the taint keeps a device for somebody: it does not say that the device is sick.
func Keeps(t resourceapi.DeviceTaint) bool {
	return KeptFor(t) != "" || t.Key == PreemptionTaint && Prevents(t)
}

// Prevents reports whether the taint keeps new pods away. The scheduler ignores effects that it does not know.
func Prevents(t resourceapi.DeviceTaint) bool {
	return t.Effect == resourceapi.DeviceTaintEffectNoSchedule || Evicts(t)
}

// Evicts reports whether the taint evicts pods that do not tolerate it.
func Evicts(t resourceapi.DeviceTaint) bool {
	return t.Effect == resourceapi.DeviceTaintEffectNoExecute
}

// NoEffect says what a toleration without an effect is worth: Kubernetes' scheduler takes it for every effect, and its
// eviction for none (up to 1.37.2 at least).
const NoEffect = "without an effect, a pod gets a device with a NoExecute taint and is evicted at once, again and " +
	"again: write effect: NoExecute, and another toleration with effect: NoSchedule where that is meant, too"

// TaintText returns the taint as kubectl writes taints of nodes.
func TaintText(t resourceapi.DeviceTaint) string {
	of := corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)}
	return of.ToString()
}

// SetTaintRule adds or updates a rule that taints devices.
func (v *View) SetTaintRule(r *resourceapi.DeviceTaintRule) { v.replaceRule(r.Name, r) }

// DeleteTaintRule removes a rule.
func (v *View) DeleteTaintRule(name string) { v.replaceRule(name, nil) }

// replaceRule replaces a rule, and finds out anew which of the devices that it selects are tainted.
func (v *View) replaceRule(name string, rule *resourceapi.DeviceTaintRule) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.rules[name]
	delete(v.rules, name)
	if rule != nil && Prevents(rule.Spec.Taint) {
		v.rules[name] = rule
	}
	for _, devices := range v.slices {
		for i := range devices {
			if d := &devices[i]; v.selects(before, d) || v.selects(rule, d) {
				d.against = v.taints(d)
				v.recount(d.gpu)
			}
		}
	}
}

func (v *View) selects(rule *resourceapi.DeviceTaintRule, d *Device) bool {
	return Selects(rule, v.driver, d.gpu.Pool, d.Name)
}

// taints returns the taints of the device, and those of rules, that keep new pods away; nil: none. The caller holds
// v.mu.
func (v *View) taints(d *Device) *[]resourceapi.DeviceTaint {
	var all []resourceapi.DeviceTaint
	for _, rule := range v.rules { // which all prevent
		if v.selects(rule, d) {
			all = append(all, rule.Spec.Taint)
		}
	}
	for _, t := range d.Taints {
		if Prevents(t) {
			all = append(all, t)
		}
	}
	if all == nil {
		return nil
	}
	return &all
}

// Admits reports whether no taint keeps a new pod with these tolerations from the device.
func (d *Device) Admits(tolerations []resourceapi.DeviceToleration) bool {
	return d.against == nil || len(Untolerated(*d.against, tolerations)) == 0
}

// Untolerated returns the taints that keep a request away.
func Untolerated(all []resourceapi.DeviceTaint,
	tolerations []resourceapi.DeviceToleration) (some []resourceapi.DeviceTaint) {
	for _, t := range all {
		if Prevents(t) && !slices.ContainsFunc(tolerations, func(with resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(with, t)
		}) {
			some = append(some, t)
		}
	}
	return some
}
