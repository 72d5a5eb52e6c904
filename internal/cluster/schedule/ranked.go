// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// A request for the strongest GPU is a list of all positions that a list can have: ranks, gaps that match nothing, and
// last what the user has asked for, which accepts all that the ranks accept. The controller makes such lists.
const (
	lastRank = "any"
	gap      = "gap-"
	Never    = "false"
)

// Ranked reports whether the list stands for a request for the strongest device.
func Ranked(list []resourceapi.DeviceSubRequest) bool {
	if len(list) != resourceapi.FirstAvailableDeviceRequestMaxSize || list[len(list)-1].Name != lastRank {
		return false
	}
	gaps := 0
	for _, s := range list {
		if s.DeviceClassName != list[0].DeviceClassName {
			return false
		}
		if strings.HasPrefix(s.Name, gap) && matchesNothing(s.Selectors) {
			gaps++
		}
	}
	return gaps > 0 || strings.HasPrefix(list[0].Name, "tflops-")
}

// matchesNothing reports whether a selector is the literal false. Such an alternative only fills a position of a list.
func matchesNothing(selectors []resourceapi.DeviceSelector) bool {
	for _, s := range selectors {
		if expressionOf(s) == Never {
			return true
		}
	}
	return false
}

// Unranked returns the workload with what the user has asked for in place of ranked lists: why it does not fit is not
// said for each rank. It returns the workload itself if it has no such list.
func (w *Workload) Unranked() *Workload {
	c := w
	for i, claim := range w.Claims {
		for j := range claim.Spec.Devices.Requests {
			list := claim.Spec.Devices.Requests[j].FirstAvailable
			if !Ranked(list) {
				continue
			}
			if c == w {
				c = w.Clone()
				c.Ranked = map[RequestID]bool{}
			}
			last := list[len(list)-1]
			request := &c.Claims[i].Spec.Devices.Requests[j]
			request.FirstAvailable = nil
			request.Exactly = &resourceapi.ExactDeviceRequest{DeviceClassName: last.DeviceClassName,
				Selectors: last.Selectors, AllocationMode: last.AllocationMode, Count: last.Count,
				Tolerations: last.Tolerations, Capacity: last.Capacity}
			c.Ranked[RequestID{i, j}] = true
		}
	}
	return c
}
