// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// Subrequest is a request without alternatives, or an alternative of one. Its fields point into the claim.
type Subrequest struct {
	Name        string // as in allocation results: request, or request/alternative
	Request     int    // number of the request
	Alternative int    // number of the alternative; -1 for none
	Class       *string
	Selectors   *[]resourceapi.DeviceSelector
	Tolerations *[]resourceapi.DeviceToleration
	Capacity    **resourceapi.CapacityRequirements
	Mode        *resourceapi.DeviceAllocationMode
	Count       *int64
	Derived     *[]resourceapi.DeviceDerivedAttribute
	Admin       bool
}

// Requests returns the requests of a claim. Of the subrequests of each, the scheduler takes the first that fits.
func Requests(spec *resourceapi.ResourceClaimSpec) [][]Subrequest {
	all := make([][]Subrequest, len(spec.Devices.Requests))
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if e := r.Exactly; e != nil {
			all[i] = append(all[i], Subrequest{r.Name, i, -1, &e.DeviceClassName, &e.Selectors, &e.Tolerations,
				&e.Capacity, &e.AllocationMode, &e.Count, &e.DerivedAttributes, ptr.Deref(e.AdminAccess, false)})
		}
		for j := range r.FirstAvailable {
			s := &r.FirstAvailable[j]
			all[i] = append(all[i], Subrequest{r.Name + "/" + s.Name, i, j, &s.DeviceClassName, &s.Selectors,
				&s.Tolerations, &s.Capacity, &s.AllocationMode, &s.Count, &s.DerivedAttributes, false})
		}
	}
	return all
}

// Subrequests returns the subrequests of all requests of a claim.
func Subrequests(spec *resourceapi.ResourceClaimSpec) []Subrequest {
	return slices.Concat(Requests(spec)...)
}

// All reports whether the subrequest asks for all devices of a node.
func (s Subrequest) All() bool { return *s.Mode == resourceapi.DeviceAllocationModeAll }

// MatchesNothing reports whether a selector is the literal false. Such an alternative only fills a position of a list.
func (s Subrequest) MatchesNothing() bool {
	return slices.ContainsFunc(*s.Selectors, func(of resourceapi.DeviceSelector) bool {
		return of.CEL != nil && of.CEL.Expression == "false"
	})
}

// Devices returns how many devices the subrequest gets, unless it asks for all: no claim gets more than that maximum.
func (s Subrequest) Devices() int64 {
	return min(max(1, *s.Count), resourceapi.AllocationResultsMaxSize)
}

// Asked returns the capacities that the subrequest asks for; nil: none.
func (s Subrequest) Asked() map[resourceapi.QualifiedName]resource.Quantity {
	if *s.Capacity == nil {
		return nil
	}
	return (*s.Capacity).Requests
}

// SetDefaults sets what the API server would.
func SetDefaults(spec *resourceapi.ResourceClaimSpec) {
	for _, s := range Subrequests(spec) {
		if *s.Mode == "" {
			*s.Mode = resourceapi.DeviceAllocationModeExactCount
		}
		if *s.Mode == resourceapi.DeviceAllocationModeExactCount && *s.Count == 0 {
			*s.Count = 1
		}
	}
}
