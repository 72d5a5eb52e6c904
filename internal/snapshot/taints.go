// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// Tainted returns the slices with the taints that the rules add, as the scheduler sees them. Slices that a rule changes
// are copied.
func Tainted(all []*resourceapi.ResourceSlice, rules []*resourceapi.DeviceTaintRule) []*resourceapi.ResourceSlice {
	all = slices.Clone(all)
	for i, original := range all {
		for _, rule := range rules {
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

// Selects reports whether the rule is for the device.
func Selects(rule *resourceapi.DeviceTaintRule, driver, pool, device string) bool {
	selector := rule.Spec.DeviceSelector
	return selector != nil && is(selector.Driver, driver) && is(selector.Pool, pool) && is(selector.Device, device)
}

// is reports whether a criterion, if there is one, selects the value.
func is(criterion *string, value string) bool { return criterion == nil || *criterion == value }
