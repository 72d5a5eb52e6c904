// SPDX-License-Identifier: Apache-2.0

// Package fit says whether and where claims get devices. Place asks Kubernetes' own allocator about a node: that is the
// truth, and takes milliseconds. Node.Estimate computes it from the view of one driver, in microseconds, for questions
// about thousands of nodes. What Estimate gives out, Place does, unless Node.Unsure says that it cannot know.
package fit

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// Demand is what a pod asks for of the driver's devices.
type Demand struct {
	Requests []Request
	// Tolerations are those of all requests.
	Tolerations []resourceapi.DeviceToleration
	// Unsure says that a claim has constraints that Estimate does not know: with derived attributes, or with devices of
	// another driver.
	Unsure bool
	// Driver is the name of the driver, for names of attributes.
	Driver string
}

// Request is a request for devices. The scheduler takes the first alternative that fits.
type Request []Alternative

// Alternative is a request for devices of the driver, or of another one.
type Alternative struct {
	Foreign     bool // devices of another driver, or of nobody
	All         bool // every device of the node that is accepted
	Count       int64
	Takes       map[*cluster.DeviceKind][]int64 // of each accepted kind; nil: all of the device
	Tolerations []resourceapi.DeviceToleration
	Constraints []*resourceapi.DeviceConstraint
}

// Add adds the requests of a claim that has no devices. Those for nothing of the driver, and those with admin access,
// take nothing.
func (d *Demand) Add(ctx context.Context, v *cluster.View, spec *resourceapi.ResourceClaimSpec) {
	d.Driver = v.Driver()
	for i, all := range cluster.Requests(spec) {
		var request Request
		ours := false
		for _, s := range all {
			a := Alternative{Foreign: !v.Ours(*s.Class) || s.Admin, Constraints: under(spec, i, s)}
			d.Unsure = d.Unsure || len(a.Constraints) > 0 && (a.Foreign || len(*s.Derived) > 0)
			if !a.Foreign {
				ours = true
				a.All, a.Count, a.Tolerations = s.All(), max(1, *s.Count), *s.Tolerations
				a.Takes = map[*cluster.DeviceKind][]int64{}
				for _, k := range v.Accepted(ctx, s) {
					a.Takes[k] = k.Takes(s.Asked())
				}
				d.Tolerations = append(d.Tolerations, a.Tolerations...)
			}
			request = append(request, a)
		}
		if ours {
			d.Requests = append(d.Requests, request)
		}
	}
}

// under returns the constraints that the subrequest is under.
func under(spec *resourceapi.ResourceClaimSpec, request int,
	s cluster.Subrequest) (all []*resourceapi.DeviceConstraint) {
	for i := range spec.Devices.Constraints {
		c := &spec.Devices.Constraints[i]
		if len(c.Requests) == 0 || slices.Contains(c.Requests, s.Name) ||
			slices.Contains(c.Requests, spec.Devices.Requests[request].Name) {
			all = append(all, c)
		}
	}
	return all
}

// Extended returns the claim that the scheduler makes for the extended resources of the driver's classes that a pod
// requests.
func Extended(v *cluster.View, requests corev1.ResourceList) *resourceapi.ResourceClaimSpec {
	spec := &resourceapi.ResourceClaimSpec{}
	for name, n := range requests {
		if class, ok := v.ExtendedClass(string(name)); ok && n.Value() > 0 {
			spec.Devices.Requests = append(spec.Devices.Requests, resourceapi.DeviceRequest{Name: string(name),
				Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class,
					Count: min(n.Value(), resourceapi.AllocationResultsMaxSize)}})
		}
	}
	slices.SortFunc(spec.Devices.Requests, func(a, b resourceapi.DeviceRequest) int {
		return cmp.Compare(a.Name, b.Name)
	})
	return spec
}
