// SPDX-License-Identifier: Apache-2.0

package view

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// SetTaintRule adds or updates a rule that taints devices.
func (v *View) SetTaintRule(r *resourceapi.DeviceTaintRule) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.rules[r.Name]
	if v.rules[r.Name] = &r.Spec; !v.applies(&r.Spec) {
		delete(v.rules, r.Name)
	}
	v.taint(before, v.rules[r.Name])
}

// DeleteTaintRule removes a rule.
func (v *View) DeleteTaintRule(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.rules[name]
	delete(v.rules, name)
	v.taint(before)
}

// applies reports whether a rule keeps new pods away from devices of the driver. Without a selector it selects nothing.
func (v *View) applies(r *resourceapi.DeviceTaintRuleSpec) bool {
	return preventsScheduling([]resourceapi.DeviceTaint{r.Taint}) && r.DeviceSelector != nil &&
		is(r.DeviceSelector.Driver, v.driver)
}

// taint finds out anew which devices are tainted, of those that one of the rules selects. The caller holds v.mu.
func (v *View) taint(rules ...*resourceapi.DeviceTaintRuleSpec) {
	for name, devices := range v.slices {
		for i := range devices {
			d := &devices[i]
			if !slices.ContainsFunc(rules, func(r *resourceapi.DeviceTaintRuleSpec) bool { return selected(r, d) }) {
				continue
			}
			d.tainted = d.own || v.ruled(d)
			if g := v.gpus[d.id]; g != nil && g.slice == name && g.Name == d.name {
				v.leave(d.id)
				g.Tainted = d.tainted
				v.enter(d.id)
			}
		}
	}
}

// ruled reports whether a rule taints the device. The caller holds v.mu.
func (v *View) ruled(d *device) bool {
	for r := range maps.Values(v.rules) {
		if selected(r, d) {
			return true
		}
	}
	return false
}

// selected reports whether the rule selects the device.
func selected(r *resourceapi.DeviceTaintRuleSpec, d *device) bool {
	return r != nil && is(r.DeviceSelector.Pool, d.id.pool) && is(r.DeviceSelector.Device, d.name)
}

// is reports whether a criterion, if there is one, selects the value.
func is(criterion *string, value string) bool { return criterion == nil || *criterion == value }
