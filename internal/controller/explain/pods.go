// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/internal/why"
)

// maxPods is how many waiting pods without a waiting claim of this driver a round remembers. Those of further
// namespaces are explained in the next rounds.
const maxPods = 1000

// claimless returns the pods to explain that no claim of the view leads to: pods whose claims do not exist, or are of a
// class that does not, and pods with extended resources. It keeps of each only its name.
func (u *Waiting) claimless(pods []*corev1.Pod, now time.Time) (all queue) {
	waits := map[types.NamespacedName]explained{}
	next := "" // the first namespace of the next round
	pods = slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool {
		return pod.Namespace < u.from || !waitsLong(pod, now.Add(-u.after)) || !u.mayConcern(pod)
	})
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, pod := range pods {
		if len(waits) == maxPods { // the next round begins with this namespace, or behind it if it fills a round alone
			if next = pod.Namespace; next == u.from {
				next += " "
			}
			break
		}
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		of, known := u.pods[name]
		if !known || !of.created.Equal(pod.CreationTimestamp.Time) {
			of = explained{created: pod.CreationTimestamp.Time}
		}
		waits[name] = of
		all.add(name, of, now)
	}
	u.from = next
	for name, of := range u.pods { // those of claims have events, too
		if _, ok := waits[name]; !ok && now.Sub(of.at) < 2*feature.EventLifetime {
			waits[name] = of
		}
	}
	u.pods = waits
	return all
}

// waitsLong reports whether the pod has waited for a node since before that time.
func waitsLong(pod *corev1.Pod, before time.Time) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0 &&
		!cluster.Finished(pod) && pod.CreationTimestamp.Time.Before(before)
}

// mayConcern reports whether the pod may wait for devices of this driver though no claim of the view does for it.
func (u *Waiting) mayConcern(pod *corev1.Pod) bool {
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return true // it is not generated
		}
		if name == nil {
			continue
		}
		if _, waits := u.claims[types.NamespacedName{Namespace: pod.Namespace, Name: *name}]; !waits {
			return true
		}
	}
	return u.extended(pod)
}

// extended reports whether the pod requests an extended resource of a class of the driver, or one that is named as
// those are.
func (u *Waiting) extended(pod *corev1.Pod) bool {
	return waiting.Extended(pod, func(name string) bool {
		return strings.HasPrefix(name, "nvidia.com/") || strings.Contains(name, "/") && u.View.Extended(name)
	})
}

// concerns reports whether the pod waits for something that does not exist, or for an extended resource.
func (u *Waiting) concerns(pod *corev1.Pod, s *indexed) bool {
	for i := range pod.Spec.ResourceClaims {
		of := &pod.Spec.ResourceClaims[i]
		name, _, err := resourceclaim.Name(pod, of)
		if err != nil && of.ResourceClaimTemplateName != nil {
			return !s.templates[types.NamespacedName{Namespace: pod.Namespace, Name: *of.ResourceClaimTemplateName}]
		}
		if err != nil || name == nil {
			continue
		}
		claim := s.claims[types.NamespacedName{Namespace: pod.Namespace, Name: *name}]
		if claim == nil || claim.Status.Allocation == nil && !s.hasClasses(claim) {
			return true
		}
	}
	return u.extended(pod)
}

// indexed finds objects of a snapshot by name.
type indexed struct {
	claims    map[types.NamespacedName]*resourceapi.ResourceClaim
	templates map[types.NamespacedName]bool
	classes   map[string]bool
	pods      map[types.NamespacedName]*corev1.Pod // without a node
}

func index(s *cluster.Snapshot) *indexed {
	all := &indexed{map[types.NamespacedName]*resourceapi.ResourceClaim{}, map[types.NamespacedName]bool{},
		map[string]bool{}, map[types.NamespacedName]*corev1.Pod{}}
	for _, c := range s.Claims {
		all.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
	}
	for _, t := range s.Templates {
		all.templates[types.NamespacedName{Namespace: t.Namespace, Name: t.Name}] = true
	}
	for _, c := range s.Classes {
		all.classes[c.Name] = true
	}
	for _, p := range s.Pods {
		if p.Spec.NodeName == "" {
			all.pods[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = p
		}
	}
	return all
}

// hasClasses reports whether all classes exist that the claim names.
func (s *indexed) hasClasses(claim *resourceapi.ResourceClaim) bool {
	return !slices.ContainsFunc(cluster.Subrequests(&claim.Spec), func(of cluster.Subrequest) bool {
		return !s.classes[*of.Class]
	})
}

// reportPods explains pods and writes events about them.
func (u *Waiting) reportPods(ctx context.Context, due []types.NamespacedName, s *indexed,
	explainer *why.Explainer, now time.Time) (last error) {
	w := &work{started: time.Now()}
	for _, name := range due {
		of := u.pods[name]
		of.at = now
		pod := s.pods[name]
		if pod == nil || !waitsLong(pod, now.Add(-u.after)) || !u.concerns(pod, s) {
			u.pods[name] = of
			continue
		}
		if w.enough() {
			break
		}
		r, panicked, err := u.answer(ctx, explainer, pod, w)
		if err != nil {
			return err
		}
		last = cmp.Or(panicked, last)
		if err := ctx.Err(); err != nil {
			return err // the answer may be wrong
		}
		u.pods[name] = of
		if r.Outcome == why.Waits && len(r.Binding) == 0 { // the scheduler tells about binding conditions itself
			err := u.tellPod(ctx, pod, r, now)
			if err != nil || u.pods[name].told.Equal(now) {
				w.told++
			}
			last = cmp.Or(err, last)
		}
	}
	return last
}

// tellPod writes an event with the answer about the pod, unless its last event says the same and still exists.
func (u *Waiting) tellPod(ctx context.Context, pod *corev1.Pod, r *why.Answer, now time.Time) error {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	of := u.pods[name]
	if !of.created.Equal(pod.CreationTimestamp.Time) {
		of = explained{created: pod.CreationTimestamp.Time}
	}
	of.at = now
	of, err := u.tell(ctx, event.PodReference(pod), of, r)
	u.pods[name] = of
	return err
}
