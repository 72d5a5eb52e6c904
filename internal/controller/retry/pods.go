// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
)

// shapeOf returns the shape of a pod that lacks these claims, once for all equal pods; nil: it lacks nothing.
func (r *Retrier) shapeOf(pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (*feature.Shape, error) {
	s, err := r.ShapeOf(pod, claims)
	if s == nil || err != nil {
		return nil, err
	}
	if r.shapes[s.Text] == nil {
		r.shapes[s.Text] = s
	}
	return r.shapes[s.Text], nil
}

// fits reports whether all of the shape fits on a node where a GPU that others use in part has room for a share of it.
// A share that was counted twice is on such a GPU, because the scheduler tries all pods when a claim ends. What else a
// pod asks of a node is not known here: a pod that seems to fit may have to wait.
func (r *Retrier) fits(ctx context.Context, s *feature.Shape) (found bool) {
	d := r.Demand(ctx, s)
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
			_, found = r.node.Estimate(d)
			found = found || r.node.Unsure
		}
	})
	return found
}
