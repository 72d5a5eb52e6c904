// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/internal/placement"
)

// asked is what a pod asks for.
type asked struct {
	fit.Demand
	host   host
	claims []types.NamespacedName // that are pending
}

// ask returns what the pod asks for. Claims that have devices already take nothing.
func ask(ctx context.Context, v *cluster.View, pod *corev1.Pod) asked {
	a := asked{host: hostOf(cluster.PodRequests(pod))}
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue // it is not created yet, or not needed
		}
		key := types.NamespacedName{Namespace: pod.Namespace, Name: *name}
		// The scheduler may have read a new claim earlier. Without it, the pod would be scored as if it wanted no GPU.
		claim, _, known := v.Pending(key)
		for ; !known && ctx.Err() == nil; claim, _, known = v.Pending(key) {
			time.Sleep(5 * time.Millisecond)
		}
		if claim == nil || slices.Contains(a.claims, key) {
			continue
		}
		before := len(a.Requests)
		a.Add(ctx, v, pod, claim)
		if len(a.Requests) > before { // others are not followed when they have devices
			a.claims = append(a.claims, key)
		}
		if len(a.Requests) > fit.MaxTries {
			return a // it fits nowhere; whoever asks decides how many there are
		}
	}
	a.Add(ctx, v, pod, fit.Extended(v, pod))
	return a
}

// node is a node while devices are predicted on it. It is used for one node after the other.
type node struct {
	fit.Node
	gpus   []placement.GPU
	scores []placement.Take // of the takes
}

// reset begins with another node, with what pods are about to get there.
func (n *node) reset(devices *cluster.NodeDevices, ahead []fit.Take,
	tolerations []resourceapi.DeviceToleration) {
	n.Reset(devices, ahead)
	n.gpus = n.gpus[:0]
	for i, g := range n.GPUs() {
		n.gpus = append(n.gpus, placement.GPU{Model: g.Product(), Idle: n.Idle(i, tolerations)})
	}
}

// refused is added to the rank where the node refuses the devices when the pod is to start: such a node comes last.
const refused = 1 << 20

// predict finds the devices that the pod gets on the node, as Estimate does, with scores.
func (n *node) predict(d *fit.Demand) (rank int, ok bool) {
	rank, ok = n.Estimate(d)
	n.scores = n.scores[:0]
	for _, t := range n.Takes {
		n.scores = append(n.scores, placement.Take{GPU: t.Index, Amount: t.Amount})
	}
	if ok && n.Refusal(d) != nil {
		rank += refused
	}
	return rank, ok
}
