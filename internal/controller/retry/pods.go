// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
)

// shape is what pods lack of the driver's devices. Pods with equal claims have the same one.
type shape struct {
	text  string
	specs []resourceapi.ResourceClaimSpec
}

// shapeOf returns the shape of a pod that lacks these claims; nil: it lacks nothing.
func (r *Retrier) shapeOf(pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (*shape, error) {
	var specs []resourceapi.ResourceClaimSpec
	for _, claim := range claims {
		specs = append(specs, cluster.WithoutTokens(claim.Spec))
	}
	if extended := fit.Extended(r.view, pod); len(extended.Spec.Devices.Requests) > 0 {
		specs = append(specs, extended.Spec)
	}
	if len(specs) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(specs)
	if err != nil {
		return nil, fmt.Errorf("encode the claims of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	s := r.shapes[string(text)]
	if s == nil {
		s = &shape{string(text), specs}
		r.shapes[s.text] = s
	}
	return s, nil
}

// fits reports whether all of the shape fits on a node where a GPU that others use in part has room for a share of it.
// A share that was counted twice is on such a GPU, because the scheduler tries all pods when a claim ends. What else a
// pod asks of a node is not known here: a pod that seems to fit may have to wait.
func (r *Retrier) fits(ctx context.Context, s *shape) (found bool) {
	var d fit.Demand
	for i := range s.specs {
		d.Add(ctx, r.view, nil, &resourceapi.ResourceClaim{Spec: s.specs[i]})
	}
	nodes := map[string]bool{}
	for _, request := range d.Requests {
		for _, a := range request {
			for kind, takes := range a.Takes {
				if takes != nil {
					r.view.Beside(kind, takes, a.Tolerations, nodes)
				}
			}
		}
	}
	r.view.Nodes(slices.Collect(maps.Keys(nodes)), func(_ int, devices *cluster.NodeDevices) {
		if !found && ctx.Err() == nil {
			r.node.Reset(devices, nil)
			_, found = r.node.Estimate(&d)
			found = found || r.node.Unsure
		}
	})
	return found
}
