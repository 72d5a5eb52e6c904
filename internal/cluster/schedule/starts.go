// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Device returns the published device; nil: there is none.
func (c *Cluster) Device(r resourceapi.DeviceRequestAllocationResult) *resourceapi.Device {
	for _, slice := range c.Pools[cluster.PoolOfResult(r)] {
		for i := range slice.Spec.Devices {
			if slice.Spec.Devices[i].Name == r.Device {
				return &slice.Spec.Devices[i]
			}
		}
	}
	return nil
}

// Refusal returns why the node would refuse the workload, whose pod this is, at the placement; nil: it does not.
func (c *Cluster) Refusal(pod *corev1.Pod, w *Workload, p Placement) *sharing.Refusal {
	claims := slices.Clone(w.Allocated)
	for i := range p.Results {
		one := *w.Claims[i]
		one.Status.Allocation = &p.Results[i]
		claims = append(claims, &one)
	}
	return fit.Refusal(pod, claims, c.Device)
}

// WithClaims returns the pod as if Kubernetes had made the claims that do not exist yet; nil: there is no pod.
func (w *Workload) WithClaims() *corev1.Pod {
	if w.Pod == nil {
		return nil
	}
	pod := *w.Pod
	for _, of := range pod.Spec.ResourceClaims {
		if _, _, err := resourceclaim.Name(&pod, &of); err != nil {
			pod.Status.ResourceClaimStatuses = append(slices.Clone(pod.Status.ResourceClaimStatuses),
				corev1.PodResourceClaimStatus{Name: of.Name, ResourceClaimName: &of.Name})
		}
	}
	for i, o := range w.Origins {
		requests := slices.Sorted(maps.Keys(o.Extended))
		if status := fit.ExtendedStatus(&pod, w.Claims[i].Name, requests); status != nil {
			pod.Status.ExtendedResourceClaimStatus = status
		}
	}
	return &pod
}
