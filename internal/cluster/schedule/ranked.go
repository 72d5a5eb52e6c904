// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// A request for the strongest GPU is a list of all positions that a list can have: ranks, gaps that match nothing, and
// last what the user has asked for, which accepts all that the ranks accept. The controller makes such lists.
const (
	lastRank = "any"
	gap      = "gap-"
)

// Ranked reports whether the alternatives stand for a request for the strongest device.
func Ranked(alternatives []cluster.Subrequest) bool {
	if len(alternatives) != resourceapi.FirstAvailableDeviceRequestMaxSize ||
		nameOf(alternatives[len(alternatives)-1]) != lastRank {
		return false
	}
	gaps := 0
	for _, s := range alternatives {
		if *s.Class != *alternatives[0].Class {
			return false
		}
		if strings.HasPrefix(nameOf(s), gap) && s.MatchesNothing() {
			gaps++
		}
	}
	return gaps > 0 || strings.HasPrefix(nameOf(alternatives[0]), "tflops-")
}

// nameOf returns the name of the alternative without that of its request.
func nameOf(s cluster.Subrequest) string {
	_, name, _ := strings.Cut(s.Name, "/")
	return name
}

// Unranked returns the workload with what the user has asked for in place of ranked lists: why it does not fit is not
// said for each rank. It returns the workload itself if it has no such list.
func (w *Workload) Unranked() *Workload {
	c := w
	for i, claim := range w.Claims {
		for j, alternatives := range cluster.Requests(&claim.Spec) {
			if !Ranked(alternatives) {
				continue
			}
			if c == w {
				c = w.Clone()
				c.Ranked = map[RequestID]bool{}
			}
			request := &c.Claims[i].Spec.Devices.Requests[j]
			last := request.FirstAvailable[len(alternatives)-1]
			request.FirstAvailable = nil
			request.Exactly = &resourceapi.ExactDeviceRequest{DeviceClassName: last.DeviceClassName,
				Selectors: last.Selectors, AllocationMode: last.AllocationMode, Count: last.Count,
				Tolerations: last.Tolerations, Capacity: last.Capacity}
			c.Ranked[RequestID{i, j}] = true
		}
	}
	return c
}
