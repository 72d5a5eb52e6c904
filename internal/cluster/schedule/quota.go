// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
)

// OverQuota returns the limits of the namespace's quotas that claims which do not exist yet would exceed on the node.
// The claim for extended resources depends on the node.
func (q *Question) OverQuota(w *Workload, node *corev1.Node) []string {
	all := q.overGPUQuota(w, node)
	if len(q.Quotas) == 0 {
		return all
	}
	want := corev1.ResourceList{}
	for i, claim := range w.claimsOn(node) {
		of := w.Origins[i]
		switch {
		case of.Extended == nil && !of.exists:
			want = Sum(want, q.quotaOf(claim))
		case of.Extended != nil && len(claim.Spec.Devices.Requests) > 0:
			more := q.quotaOf(claim)
			for _, name := range of.Extended {
				if of.exists { // the quota has counted what the pod itself requests
					delete(more, corev1.DefaultResourceRequestsPrefix+name)
				}
			}
			want = Sum(want, more)
		}
	}
	for _, quota := range q.Quotas {
		if len(want) == 0 || quota.Namespace != w.Namespace() || scoped(quota) {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(quota.Status.Hard)) {
			more, ok := want[name]
			if !ok {
				continue
			}
			total, hard := quota.Status.Used[name].DeepCopy(), quota.Status.Hard[name]
			used := total.String()
			total.Add(more)
			if total.Cmp(hard) > 0 {
				all = append(all, fmt.Sprintf("the quota %s allows %s of %s, %s are used and %s more are wanted",
					quota.Name, hard.String(), name, used, more.String()))
			}
		}
	}
	return all
}

// scoped reports whether the quota counts only objects of its scopes. It never counts claims then, because no scope is
// for them.
func scoped(quota *corev1.ResourceQuota) bool {
	return len(quota.Spec.Scopes) > 0 ||
		quota.Spec.ScopeSelector != nil && len(quota.Spec.ScopeSelector.MatchExpressions) > 0
}

// scopedQuotas returns the names of the quotas with scopes that may count the extended resources of a pod that does not
// exist yet, sorted. Only Kubernetes' own code knows whether it is of the scopes.
func (c *Cluster) scopedQuotas(w *Workload) []string {
	var all []string
	for _, quota := range c.Quotas {
		if quota.Namespace == w.Namespace() && scoped(quota) && slices.ContainsFunc(w.Origins, func(o Origin) bool {
			return !o.exists && slices.ContainsFunc(slices.Collect(maps.Values(o.Extended)),
				func(name corev1.ResourceName) bool {
					_, limits := quota.Status.Hard[corev1.DefaultResourceRequestsPrefix+name]
					return limits
				})
		}) {
			all = append(all, quota.Name)
		}
	}
	slices.Sort(all)
	return all
}

// overGPUQuota returns the limits of GPUQuotas that claims which do not exist yet would exceed. The scheduler creates
// the claim for extended resources when it has found devices.
func (q *Question) overGPUQuota(w *Workload, node *corev1.Node) (all []string) {
	limits := func(quota *cluster.GPUQuota) bool { return quota.Namespace == w.Namespace() && quota.Status.Enforced }
	first := slices.IndexFunc(q.GPUQuotas, limits)
	if first < 0 {
		return nil
	}
	view := q.view(q.GPUQuotas[first].Status.Driver)
	want, whole := cluster.Zero(), ""
	for i, claim := range w.claimsOn(node) {
		of := w.Origins[i]
		if of.Extended == nil && of.exists {
			continue
		}
		amount, err := view.AmountOf(q.Context, claim)
		if err != nil {
			amount = nil
		}
		want.Add(amount, 1)
		whole = cmp.Or(whole, view.Whole(q.Context, claim))
	}
	for _, quota := range q.GPUQuotas {
		if !limits(quota) {
			continue
		}
		for _, e := range quota.Exceeded(want) {
			if e.Asked == nil {
				all = append(all, fmt.Sprintf("the GPUQuota %s allows %s of %s, and how much is wanted is not known",
					quota.Name, e.Hard, e.Resource))
			} else if e.Used != nil {
				all = append(all, fmt.Sprintf("the GPUQuota %s allows %s of %s, %s are used and up to %s more are "+
					"wanted%s", quota.Name, e.Hard, e.Resource, e.Used, e.Asked, whole))
			}
		}
	}
	return all
}

// view returns the devices of the driver, with which amounts of GPUQuotas are computed.
func (c *Cluster) view(driver string) *cluster.View {
	if c.kinds == nil || c.kinds.Driver() != driver {
		c.kinds = cluster.New(driver)
		for _, class := range c.Classes {
			c.kinds.SetClass(class)
		}
		c.kinds.Remote = cluster.New(remote.Driver(driver))
		for _, slice := range c.Slices {
			c.kinds.SetSlice(c.kinds.SlimSlice(slice))
			c.kinds.Remote.SetSlice(c.kinds.Remote.SlimSlice(slice))
		}
	}
	return c.kinds
}

// quotaOf returns what the quota counts for the claim: itself, and its devices by class. Devices of a class also count
// as the extended resource that it has by its name, and as the one that it names.
func (c *Cluster) quotaOf(claim *resourceapi.ResourceClaim) corev1.ResourceList {
	type key struct {
		request int
		class   string
	}
	most := map[key]int64{} // that an alternative has
	for _, p := range cluster.Subrequests(&claim.Spec) {
		n := *p.Count
		if p.All() {
			n = resourceapi.AllocationResultsMaxSize
		}
		k := key{p.Request, *p.Class}
		most[k] = max(most[k], n)
	}
	all := corev1.ResourceList{"count/resourceclaims.resource.k8s.io": *NewQuantity(1)}
	for k, n := range most {
		names := []string{k.class + corev1.ResourceClaimsPerClass,
			corev1.ResourceImplicitExtendedClaimsPerClass + k.class}
		if class := c.ClassByName[k.class]; class != nil && class.Spec.ExtendedResourceName != nil {
			names = append(names, corev1.DefaultResourceRequestsPrefix+*class.Spec.ExtendedResourceName)
		}
		for _, name := range names {
			all = Sum(all, corev1.ResourceList{corev1.ResourceName(name): *NewQuantity(n)})
		}
	}
	return all
}
