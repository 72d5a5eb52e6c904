// SPDX-License-Identifier: Apache-2.0

// Package fit says whether and where claims get devices, from the view of one driver, in microseconds, for questions
// about thousands of nodes. Package allocator asks Kubernetes' own allocator about a node: that is the truth, and takes
// milliseconds. What Node.Estimate gives out, the allocator does, unless Node.Unsure says that it cannot know: of
// selectors it takes those of single GPUs for met.
package fit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// Demand is what a pod asks for of the driver's devices.
type Demand struct {
	Requests []Request
	// Tolerations are those of all requests.
	Tolerations []resourceapi.DeviceToleration

	// A claim has constraints that Estimate does not know: with derived attributes, or with devices of another driver.
	unsure  bool
	tooMany bool   // devices for a claim
	driver  string // for names of attributes

	refusals refusals
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

	asked *asked // of the devices of the driver
}

// Add adds the requests of a claim that has no devices. Those for nothing of the driver, and those with admin access,
// take nothing. pod is the one that uses the claim; nil: then nodes refuse nothing.
func (d *Demand) Add(ctx context.Context, v *cluster.View, pod *corev1.Pod, claim *resourceapi.ResourceClaim) {
	d.driver = v.Driver()
	spec := &claim.Spec
	devices := int64(0)
	for i, all := range cluster.Requests(spec) {
		var request Request
		ours, least := false, int64(resourceapi.AllocationResultsMaxSize+1)
		for _, s := range all {
			a := Alternative{Foreign: !v.Ours(*s.Class) || s.Admin, Constraints: under(spec, i, s)}
			d.unsure = d.unsure || len(a.Constraints) > 0 && (a.Foreign || len(*s.Derived) > 0)
			if least = min(least, max(1, *s.Count)); !a.Foreign {
				ours = true
				a.All, a.Count, a.Tolerations = s.All(), max(1, *s.Count), *s.Tolerations
				a.asked = d.refusals.add(v, pod, claim, s)
				a.Takes = map[*cluster.DeviceKind][]int64{}
				for _, k := range v.Accepted(ctx, s) {
					a.Takes[k] = k.Takes(s.Asked())
				}
				d.Tolerations = append(d.Tolerations, a.Tolerations...)
			}
			request = append(request, a)
		}
		devices += least
		if ours {
			d.Requests = append(d.Requests, request)
		}
	}
	d.tooMany = d.tooMany || devices > resourceapi.AllocationResultsMaxSize
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
func Extended(v *cluster.View, pod *corev1.Pod) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{}
	spec := &claim.Spec
	for name := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		if class, ok := v.ExtendedClass(string(name)); ok {
			spec.Devices.Requests = append(spec.Devices.Requests, ExtendedRequests(pod, name, class)...)
		}
	}
	slices.SortFunc(spec.Devices.Requests, func(a, b resourceapi.DeviceRequest) int {
		return cmp.Compare(a.Name, b.Name)
	})
	return claim
}

// ExtendedRequest returns the name that the scheduler gives the request for an extended resource. resource is its
// number among the sorted resources that the container requests.
func ExtendedRequest(container, resource int) string {
	return fmt.Sprintf(extendedRequest, container, resource)
}

const extendedRequest = "container-%d-request-%d"

// ExtendedStatus returns what the status of the pod says about the claim for its extended resources, which has these
// requests; nil: none of them is for one.
func ExtendedStatus(pod *corev1.Pod, claim string, requests []string) (status *corev1.PodExtendedResourceClaimStatus) {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for _, request := range requests {
		var container, number int
		if _, err := fmt.Sscanf(request, extendedRequest, &container, &number); err != nil {
			continue
		}
		if status == nil {
			status = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: claim}
		}
		status.RequestMappings = append(status.RequestMappings, corev1.ContainerExtendedResourceRequest{
			ContainerName: containers[container].Name, RequestName: request})
	}
	return status
}

// ExtendedRequests returns a request for each container with the extended resource. Init containers other than sidecars
// end before later containers start, and use the devices of those: one request has what the largest of them needs
// beyond that.
func ExtendedRequests(pod *corev1.Pod, name corev1.ResourceName, class string) []resourceapi.DeviceRequest {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	counts, later := make([]int64, len(containers)), int64(0)
	most := -1 // the init container that needs the most beyond those of later containers
	for i := len(containers) - 1; i >= 0; i-- {
		q := containers[i].Resources.Requests[name]
		counts[i] = q.Value()
		policy := containers[i].RestartPolicy
		if i >= len(pod.Spec.InitContainers) || policy != nil && *policy == corev1.ContainerRestartPolicyAlways {
			later += counts[i]
			continue
		}
		counts[i] -= later
		if most < 0 || counts[i] >= counts[most] {
			if most >= 0 {
				counts[most] = 0
			}
			most = i
		} else {
			counts[i] = 0
		}
	}
	var all []resourceapi.DeviceRequest
	for i, count := range counts {
		if count <= 0 {
			continue
		}
		j := slices.Index(slices.Sorted(maps.Keys(containers[i].Resources.Requests)), name)
		all = append(all, resourceapi.DeviceRequest{Name: ExtendedRequest(i, j),
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: count,
				AllocationMode: resourceapi.DeviceAllocationModeExactCount}})
	}
	return all
}
