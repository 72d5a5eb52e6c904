// SPDX-License-Identifier: Apache-2.0

package feature

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// maxClaims is how many claims a pod may have for Lacks: users choose how many.
const maxClaims = 100

// Lacks returns the claims of the pod that have no devices. ok is false if one is not there, which is why the pod
// waits, or if there are too many.
func (c *Controller) Lacks(pod *corev1.Pod) (all []*resourceapi.ResourceClaim, ok bool) {
	if len(pod.Spec.ResourceClaims) > maxClaims {
		return nil, false
	}
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, false
		}
		if name == nil {
			continue
		}
		claim, _, known := c.View.Pending(types.NamespacedName{Namespace: pod.Namespace, Name: *name})
		if !known {
			return nil, false
		}
		if claim != nil && !slices.Contains(all, claim) {
			all = append(all, claim)
		}
	}
	return all, true
}
