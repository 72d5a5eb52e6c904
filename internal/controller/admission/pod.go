// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"encoding/json"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Pods is the webhook that warns of pods that would get devices and not start, because each node refuses them.
type Pods struct {
	View      *cluster.View
	Templates client.Reader
}

// Handle warns of a pod when it is created.
func (p Pods) Handle(ctx context.Context, req webhook.Request) webhook.Response {
	var pod corev1.Pod
	if err := json.Unmarshal(req.Object.Raw, &pod); err != nil {
		return webhook.Errored(http.StatusBadRequest, err)
	}
	pod.Namespace = req.Namespace
	if refusal := p.refusal(ctx, &pod); refusal != nil {
		return webhook.Allowed("").WithWarnings("the pod would get devices and not start, because its node refuses " +
			"it: " + refusal.Text())
	}
	return webhook.Allowed("")
}

// maxClaims is how many claims a pod may have: its user decides how many, and each is read.
const maxClaims = 16

// refusal returns why each node that has devices for the pod, once nobody holds them, refuses it; nil: as far as is
// known, one does not.
func (p Pods) refusal(ctx context.Context, pod *corev1.Pod) (refusal *sharing.Refusal) {
	if len(pod.Spec.ResourceClaims) > maxClaims {
		return nil
	}
	var demand fit.Demand
	pod.Status = corev1.PodStatus{}
	for i := range pod.Spec.ResourceClaims {
		claim := p.claim(ctx, pod.Namespace, &pod.Spec.ResourceClaims[i])
		if claim == nil {
			return nil
		}
		pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses,
			corev1.PodResourceClaimStatus{Name: pod.Spec.ResourceClaims[i].Name, ResourceClaimName: &claim.Name})
		demand.Add(ctx, p.View, pod, claim)
	}
	extended := fit.Extended(p.View, pod)
	extended.Namespace, extended.Name = pod.Namespace, "extended-resources"
	var requests []string
	for _, r := range extended.Spec.Devices.Requests {
		requests = append(requests, r.Name)
	}
	pod.Status.ExtendedResourceClaimStatus = fit.ExtendedStatus(pod, extended.Name, requests)
	demand.Add(ctx, p.View, pod, extended)
	var node fit.Node
	starts := len(demand.Requests) == 0
	p.View.Nodes(p.View.DifferentNodes(), func(_ int, devices *cluster.NodeDevices) {
		node.Empty(devices)
		if starts || ctx.Err() != nil {
			return
		}
		if _, fits := node.Estimate(&demand); fits {
			refusal = node.Refusal(&demand)
			starts = refusal == nil
		}
	})
	if starts || ctx.Err() != nil {
		return nil
	}
	return refusal
}

// claim returns the claim, or the one that will be made from its template; nil: neither is there, or it has devices.
func (p Pods) claim(ctx context.Context, namespace string, of *corev1.PodResourceClaim) *resourceapi.ResourceClaim {
	if of.ResourceClaimTemplateName == nil {
		claim, _, _ := p.View.Pending(types.NamespacedName{Namespace: namespace,
			Name: ptr.Deref(of.ResourceClaimName, "")})
		return claim
	}
	var template resourceapi.ResourceClaimTemplate
	if err := p.Templates.Get(ctx, types.NamespacedName{Namespace: namespace, Name: *of.ResourceClaimTemplateName},
		&template); err != nil {
		return nil // a warning is not worth an error
	}
	claim := &resourceapi.ResourceClaim{Spec: template.Spec.Spec}
	claim.Namespace, claim.Name = namespace, of.Name
	return claim
}
