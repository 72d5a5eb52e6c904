// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// Share returns the amounts that a request asks for of a device, such as "memory 5Gi", if they are less than all of it.
// The request is named as in allocation results. "": it asks for none, or for all.
func Share(spec *resourceapi.ResourceClaimSpec, request string, d *resourceapi.Device) string {
	var texts []string
	requests := capacityOf(spec, request)
	if requests == nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(requests.Requests)) {
		amount := requests.Requests[name]
		if has, ok := d.Capacity[name]; !ok || amount.Cmp(has.Value) < 0 {
			texts = append(texts, fmt.Sprintf("%s %s", name, amount.String()))
		}
	}
	return strings.Join(texts, ", ")
}

// capacityOf returns what the request, or the alternative of one, asks for.
func capacityOf(spec *resourceapi.ResourceClaimSpec, request string) *resourceapi.CapacityRequirements {
	name, alternative, _ := strings.Cut(request, "/")
	for _, r := range spec.Devices.Requests {
		if r.Name != name {
			continue
		}
		if r.Exactly != nil {
			return r.Exactly.Capacity
		}
		for _, sub := range r.FirstAvailable {
			if sub.Name == alternative {
				return sub.Capacity
			}
		}
	}
	return nil
}
