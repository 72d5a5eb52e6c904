// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
)

// Manifest is what somebody is about to create.
type Manifest struct {
	Pods      []*corev1.Pod
	Claims    []*resourceapi.ResourceClaim
	Templates []*resourceapi.ResourceClaimTemplate
	// Others are the names of objects that may ask for GPUs in another way. They are not explained.
	Others []string
	// Namespaces are those that it has, or that could be read, by name. The others may or may not accept adminAccess.
	Namespaces map[string]*corev1.Namespace
}

// Fit explains whether each pod of the manifest would fit on the cluster, and each claim and template that no pod of
// the manifest uses. Each is asked about alone.
func Fit(ctx context.Context, s *cluster.Snapshot, m Manifest) []*Answer {
	with := *s
	with.Claims, with.Templates = slices.Clone(s.Claims), slices.Clone(s.Templates)
	for _, claim := range m.Claims {
		claim = claim.DeepCopy()
		claim.Status = resourceapi.ResourceClaimStatus{}
		cluster.SetDefaults(&claim.Spec)
		with.Claims = replace(with.Claims, claim)
	}
	for _, template := range m.Templates {
		with.Templates = replace(with.Templates, template)
	}
	c, existing := newExplainer(&with, Options{}), schedule.ByName(s.Claims)
	for _, claim := range m.Claims {
		_, exists := existing.Find(claim.Namespace, claim.Name)
		c.Planned[claim.Namespace+"/"+claim.Name] = !exists
	}
	var all []*Answer
	used, refusals := map[string]bool{}, m.refusals(s)
	for _, pod := range m.Pods {
		pod = pod.DeepCopy()
		if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil { // of a pod that exists
			used["claim "+pod.Namespace+"/"+extended.ResourceClaimName] = true
		}
		bypasses := "" // the node that the manifest names, and not the scheduler
		if pod.UID == "" {
			bypasses = pod.Spec.NodeName
		}
		pod.UID, pod.Spec.NodeName, pod.Status = "", "", corev1.PodStatus{}
		requestLimits(pod)
		var uses []string
		for _, of := range pod.Spec.ResourceClaims {
			uses = append(uses, "claim "+pod.Namespace+"/"+ptr.Deref(of.ResourceClaimName, ""),
				"template "+pod.Namespace+"/"+ptr.Deref(of.ResourceClaimTemplateName, ""))
		}
		slices.Sort(uses)
		uses = slices.Compact(uses)
		for _, key := range uses {
			used[key] = true
		}
		if bypasses != "" && c.lacksDevices(pod, bypasses, existing) {
			r := newAnswer("Pod", &pod.ObjectMeta)
			r.Outcome, r.Cause = Waits, fmt.Sprintf("pod %s would get no devices: %s", pod.Name, noScheduler(bypasses))
			all = append(all, r)
			continue
		}
		r := explainPod(ctx, c, pod)
		r.refuse("pod "+pod.Name+" waits: ", refusals, uses...)
		all = append(all, r)
	}
	for _, of := range m.Claims {
		if used["claim "+of.Namespace+"/"+of.Name] {
			continue
		}
		claim, _ := c.ClaimNamed.Find(of.Namespace, of.Name)
		o := c.OriginOf(claim)
		r := newAnswer("ResourceClaim", &claim.ObjectMeta)
		explain(ctx, c, schedule.OfClaim(claim, o), r, o.Label)
		r.refuse("", refusals, "claim "+of.Namespace+"/"+of.Name)
		all = append(all, r)
	}
	for _, template := range m.Templates {
		if used["template "+template.Namespace+"/"+template.Name] {
			continue
		}
		claim := schedule.ClaimOf(template, template.Name)
		label := "a claim of template " + template.Name
		o := schedule.Origin{Label: label, Object: "ResourceClaimTemplate " + template.Namespace + "/" + template.Name}
		r := newAnswer("ResourceClaimTemplate", &template.ObjectMeta)
		explain(ctx, c, schedule.OfClaim(claim, o), r, label)
		r.refuse("", refusals, "template "+template.Namespace+"/"+template.Name)
		all = append(all, r)
	}
	return all
}

// lacksDevices reports whether the pod needs devices on the node that only the scheduler would allocate: no device
// plugin offers them there, and its claim has none in the cluster.
func (c *explainer) lacksDevices(pod *corev1.Pod, node string,
	existing schedule.Named[*resourceapi.ResourceClaim]) bool {
	for _, of := range pod.Spec.ResourceClaims {
		claim, ok := existing.Find(pod.Namespace, ptr.Deref(of.ResourceClaimName, ""))
		if !ok || claim.Status.Allocation == nil {
			return true
		}
	}
	at := slices.IndexFunc(c.AllNodes, func(n *corev1.Node) bool { return n.Name == node })
	_, extended := c.ExtendedOf(pod)
	for _, name := range extended {
		if at < 0 || !schedule.FromPlugin(c.AllNodes[at], name) {
			return true
		}
	}
	return false
}

// requestLimits requests what a container or the pod is limited to, as the API server does where nothing is requested.
func requestLimits(pod *corev1.Pod) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			r := &containers[i].Resources
			all := corev1.ResourceList{}
			maps.Copy(all, r.Limits)
			maps.Copy(all, r.Requests)
			r.Requests = all
		}
	}
	r := pod.Spec.Resources
	if r == nil {
		return
	}
	all := corev1.ResourceList{}
	maps.Copy(all, r.Requests)
	requested := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})
	for name, limit := range r.Limits {
		if _, ok := requested[name]; !ok {
			all[name] = limit
		}
	}
	r.Requests = all
}

// replace returns the objects with another, which replaces the one of the same name.
func replace[T metav1.Object](all []T, object T) []T {
	return append(slices.DeleteFunc(all, func(o T) bool {
		return o.GetNamespace() == object.GetNamespace() && o.GetName() == object.GetName()
	}), object)
}

// Empty returns the cluster without pods, without claims that have devices, and without what quotas have counted. That
// other pods and claims could not be read does not matter then.
func Empty(s *cluster.Snapshot) *cluster.Snapshot {
	c := *s
	c.Unread = maps.Clone(s.Unread)
	delete(c.Unread, cluster.Claims)
	delete(c.Unread, cluster.Pods)
	c.Quotas = nil
	for _, quota := range s.Quotas {
		quota = quota.DeepCopy()
		quota.Status.Used = nil
		c.Quotas = append(c.Quotas, quota)
	}
	c.GPUQuotas = nil
	for _, quota := range s.GPUQuotas {
		quota = quota.DeepCopy()
		quota.Use(cluster.Zero())
		c.GPUQuotas = append(c.GPUQuotas, quota)
	}
	c.Pods = nil
	c.Claims = nil
	for _, claim := range s.Claims {
		if claim.Status.Allocation == nil {
			c.Claims = append(c.Claims, claim)
		}
	}
	return &c
}
