// SPDX-License-Identifier: Apache-2.0

package feature

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
)

// Shape is what pods lack of the driver's devices. Pods with equal claims have equal ones.
type Shape struct {
	Text  string // equal for equal shapes
	Specs []resourceapi.ResourceClaimSpec
}

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

// ShapeOf returns the shape of a pod that lacks these claims; nil: it lacks nothing.
func (c *Controller) ShapeOf(pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (*Shape, error) {
	var specs []resourceapi.ResourceClaimSpec
	for _, claim := range claims {
		specs = append(specs, cluster.WithoutTokens(claim.Spec))
	}
	if extended := fit.Extended(c.View, pod); len(extended.Spec.Devices.Requests) > 0 {
		specs = append(specs, extended.Spec)
	}
	if len(specs) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(specs)
	if err != nil {
		return nil, fmt.Errorf("encode the claims of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return &Shape{string(text), specs}, nil
}

// Demand returns what a pod of the shape asks for of the driver's devices.
func (c *Controller) Demand(ctx context.Context, s *Shape) *fit.Demand {
	var d fit.Demand
	for i := range s.Specs {
		d.Add(ctx, c.View, nil, &resourceapi.ResourceClaim{Spec: s.Specs[i]})
	}
	return &d
}
