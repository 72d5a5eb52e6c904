// SPDX-License-Identifier: Apache-2.0

package why

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// slimmer makes slices small, for programs that must not need much memory. Answers stay the same.
type slimmer struct {
	names map[string]bool // of the attributes that an answer may need; nil: all
	parts cluster.Parts
}

// maxParsed is how many bytes of expressions are parsed to make slices small. All claims together may have more: then
// the attributes stay.
const maxParsed = 4 << 20

// newSlimmer returns a slimmer for answers about the claims of the snapshot that have no devices. The snapshot has all
// classes, claims and templates.
func newSlimmer(s *cluster.Snapshot) *slimmer {
	c := newIndex(&cluster.Snapshot{Classes: s.Classes})
	w := &workload{}
	add := func(claim *resourceapi.ResourceClaim) {
		if one := (&workload{claims: []*resourceapi.ResourceClaim{claim}}); one.tooLarge() == nil {
			w.claims = append(w.claims, claim) // others are not explained
		}
	}
	for _, claim := range s.Claims {
		if claim.Status.Allocation == nil {
			add(claim)
		}
	}
	for _, template := range s.Templates {
		add(claimOf(template, ""))
	}
	for _, class := range s.Classes { // also those behind extended resources
		w.claims = append(w.claims, &resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{
			Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
				Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class.Name}}}}}})
	}
	names := c.namesIn(w)
	for _, name := range ofView {
		if names != nil {
			names[name] = true
		}
	}
	return &slimmer{names, cluster.Parts{}}
}

// ofView are the attributes with which a cluster.View tells how much of a GPU claims hold.
var ofView = []string{"type", "productName", "profile", "multiprocessors", "sharing", "sharedOnly", "peakCompute"}

// slice drops the attributes of devices that nothing reads, and lets equal devices of all slices share their parts. It
// changes the slice.
func (s *slimmer) slice(slice *resourceapi.ResourceSlice) {
	slice.ManagedFields = nil
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		for name := range d.Attributes {
			if s.names != nil && !s.names[identifier(name)] {
				delete(d.Attributes, name)
			}
		}
		s.parts.Share(d)
	}
}

// identifier returns the name without its domain.
func identifier(name resourceapi.QualifiedName) string {
	_, id, ok := strings.Cut(string(name), "/")
	if !ok {
		return string(name)
	}
	return id
}
