// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
)

// PoolID names a pool. The names of one driver's pools are unique.
type PoolID struct{ Driver, Pool string }

// PoolOf returns the pool that the slice belongs to.
func PoolOf(s *resourceapi.ResourceSlice) PoolID { return PoolID{s.Spec.Driver, s.Spec.Pool.Name} }

// PoolOfResult returns the pool of an allocated device.
func PoolOfResult(r resourceapi.DeviceRequestAllocationResult) PoolID {
	return PoolID{r.Driver, r.Pool}
}

// Current returns the slices in the newest generation of each pool: the others are obsolete.
func Current(all []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	newest := map[PoolID]int64{}
	for _, s := range all {
		newest[PoolOf(s)] = max(newest[PoolOf(s)], s.Spec.Pool.Generation)
	}
	var current []*resourceapi.ResourceSlice
	for _, s := range all {
		if s.Spec.Pool.Generation == newest[PoolOf(s)] {
			current = append(current, s)
		}
	}
	return current
}

// Results is allocator.Results.
func Results(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	return allocator.Results(claim)
}

// DeviceStatus returns what the status of the claim says of an allocated device; nil: nothing.
func DeviceStatus(claim *resourceapi.ResourceClaim,
	r *resourceapi.DeviceRequestAllocationResult) *resourceapi.AllocatedDeviceStatus {
	for i, d := range claim.Status.Devices {
		if d.Driver == r.Driver && d.Pool == r.Pool && d.Device == r.Device &&
			ptr.Deref(d.ShareID, "") == string(ptr.Deref(r.ShareID, "")) {
			return &claim.Status.Devices[i]
		}
	}
	return nil
}

// Since returns when the claim got its devices, or when it was created if Kubernetes has not stored that.
func Since(claim *resourceapi.ResourceClaim) *metav1.Time {
	if a := claim.Status.Allocation; a != nil && a.AllocationTimestamp != nil {
		return a.AllocationTimestamp
	}
	if claim.CreationTimestamp.IsZero() {
		return nil
	}
	return &claim.CreationTimestamp
}

// IsStatic reports whether a file of its node creates the pod. The kubelet deletes others with this annotation. Anybody
// may write an owner of the kind Node.
func IsStatic(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

// Ready reports whether the pod is ready, as the kubelet says. Kubernetes says no for a pod of a node that is gone.
func Ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Finished reports whether the containers of the pod have ended for good.
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
