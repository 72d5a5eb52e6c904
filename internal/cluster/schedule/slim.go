// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
)

// maxParsed is how many bytes of expressions are parsed to make slices small. All claims together may have more: then
// the attributes stay.
const maxParsed = 4 << 20

// AttributesFor returns which attributes of devices answers need that are about the claims of the snapshot that have no
// devices; nil: all. The snapshot has all classes, claims and templates.
func AttributesFor(s *cluster.Snapshot) func(resourceapi.QualifiedName) bool {
	c := New(&cluster.Snapshot{Classes: s.Classes})
	w := &Workload{}
	add := func(claim *resourceapi.ResourceClaim) {
		if one := OfClaim(claim, Origin{}); one.TooLarge() == nil {
			w.Claims = append(w.Claims, claim) // others are not explained
		}
	}
	for _, claim := range s.Claims {
		if claim.Status.Allocation == nil {
			add(claim)
		}
	}
	for _, template := range s.Templates {
		add(ClaimOf(template, ""))
	}
	for _, class := range s.Classes { // also those behind extended resources
		w.Claims = append(w.Claims, &resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{
			Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
				Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class.Name}}}}}})
	}
	names := c.namesIn(w)
	if names == nil {
		return nil
	}
	for _, name := range ofView {
		names[name] = true
	}
	return func(name resourceapi.QualifiedName) bool { return names[selectors.Identifier(name)] }
}

// ofView are the attributes with which a cluster.View tells how much of a GPU claims hold.
var ofView = []string{"type", "productName", "profile", "multiprocessors", "sharing", "sharedOnly", "peakCompute",
	"partitionsOnDemand"}
