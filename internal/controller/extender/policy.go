// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/internal/placement"
)

// PolicyAnnotation is the annotation of pods that chooses the policy. Those of HAMi mean the same.
const PolicyAnnotation = "gpu.nvidia.com/placement"

// Policies are the values of the flag and of PolicyAnnotation.
var Policies = map[string]placement.Policy{"pack": placement.Pack, "spread": placement.Spread}

var hamiPolicies = map[string]placement.Policy{"binpack": placement.Pack, "spread": placement.Spread}

// annotations choose the policy. The first one with a known value counts.
var annotations = []struct {
	key      string
	policies map[string]placement.Policy
	want     string
}{
	{PolicyAnnotation, Policies, "pack or spread"},
	{"hami.io/node-scheduler-policy", hamiPolicies, "binpack or spread"},
	{"hami.io/gpu-scheduler-policy", hamiPolicies, "binpack or spread"},
}

// policyOf returns the policy that the annotations of a pod ask for, or else another one. by is the annotation that
// counts, and unknown says which ones before it have a value that is no policy.
func policyOf(of map[string]string, otherwise placement.Policy) (p placement.Policy, by string, unknown []string) {
	for _, a := range annotations {
		text, set := of[a.key]
		if !set {
			continue
		}
		if p, ok := a.policies[text]; ok {
			return p, a.key, unknown
		}
		unknown = append(unknown, fmt.Sprintf("annotation %s: got %q, want %s", a.key, text, a.want))
	}
	return otherwise, "", unknown
}

// maxAnnotation is how many bytes are kept of an annotation.
const maxAnnotation = 64

// policyAnnotations returns the annotations that choose the policy; nil: there are none.
func policyAnnotations(o metav1.Object) (some map[string]string) {
	of := o.GetAnnotations()
	for _, a := range annotations {
		if text, set := of[a.key]; set {
			if some == nil {
				some = map[string]string{}
			}
			// a copy: the part would keep all of the annotation
			some[a.key] = strings.Clone(strings.ToValidUTF8(text[:min(len(text), maxAnnotation)], ""))
		}
	}
	return some
}

// maxPlaced is how many pods wait for their event. More of them get none.
const maxPlaced = 1000

// placed is a pod that has got its node, and that has annotations for the policy.
type placed struct {
	namespace, name string
	uid             types.UID
	annotations     map[string]string
}

// tell writes the events about pods until ctx ends. Pods whose event another replica has written get no second one.
func (x *Extender) tell(ctx context.Context, to client.Client, guard feature.Guard) {
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-x.usage.placed:
			err := guard.Do("write events of placement", func() error { return x.tellOf(ctx, to, p) })
			if err != nil && ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "No event about the policy of a pod")
			}
		}
	}
}

func (x *Extender) tellOf(ctx context.Context, to client.Client, p placed) error {
	policy, by, unknown := policyOf(p.annotations, x.policy)
	kind, text := Events.Chosen, "annotation "+by
	if len(unknown) > 0 {
		kind, text = Events.Ignored, strings.Join(unknown, "; ")
	}
	text += ": nodes were scored with the policy " + policy.String()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.name, UID: p.uid}}
	_, err := feature.CreateEvent(ctx, to, kind, event.PodReference(pod), "placement-"+string(p.uid), text)
	return err
}
