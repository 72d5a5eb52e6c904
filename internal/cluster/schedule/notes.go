// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// Unconsidered returns what a pod demands of its node that is not about devices, resources, labels or taints of nodes.
func Unconsidered(spec *corev1.PodSpec) (all []string) {
	if a := spec.Affinity; a != nil && (a.PodAffinity != nil &&
		len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 || a.PodAntiAffinity != nil &&
		len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0) {
		all = append(all, "the affinity to other pods is")
	}
	if slices.ContainsFunc(spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable == corev1.DoNotSchedule
	}) {
		all = append(all, "topologySpreadConstraints are")
	}
	if slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
	}) {
		all = append(all, "the places of volumes are")
	}
	if slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), func(one corev1.Container) bool {
		return slices.ContainsFunc(one.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
	}) {
		all = append(all, "host ports are")
	}
	return all
}

// withoutReading says what answers do not cover that lack a resource.
var withoutReading = map[string]string{cluster.Claims: "claims of other namespaces may hold devices",
	cluster.Nodes:      "nodes cannot be read, so their labels, taints and resources are not considered",
	cluster.Pods:       "pods cannot be read, so what they use of nodes is not considered",
	cluster.Quotas:     "quotas cannot be read, and are not considered",
	cluster.GPUQuotas:  "GPUQuotas cannot be read, and are not considered",
	cluster.TaintRules: "DeviceTaintRules cannot be read, so devices may have more taints"}

// Notes returns what the answer does not cover.
func (c *Cluster) Notes(w *Workload) []string {
	var all []string
	for _, resource := range slices.Sorted(maps.Keys(c.Unread)) {
		if text := withoutReading[resource]; text != "" {
			all = append(all, fmt.Sprintf("%s: %v", text, c.Unread[resource]))
		}
	}
	for i, claim := range w.Claims {
		for _, p := range cluster.Subrequests(&claim.Spec) {
			if slices.ContainsFunc(*p.Tolerations, func(t resourceapi.DeviceToleration) bool {
				return t.Effect == ""
			}) {
				all = append(all, fmt.Sprintf("a toleration of %s, request %s: %s", w.Origins[i].Label, p.Name,
					cluster.NoEffect))
			}
		}
	}
	if w.Pod == nil {
		return all
	}
	if names := c.scopedQuotas(w); len(names) > 0 {
		all = append(all, fmt.Sprintf("quotas with scopes are not considered: %s", strings.Join(names, ", ")))
	}
	for _, what := range Unconsidered(&w.Pod.Spec) {
		all = append(all, what+" not considered")
	}
	if name := w.Pod.Spec.SchedulerName; name != "" && name != corev1.DefaultSchedulerName {
		all = append(all, fmt.Sprintf("the scheduler %s of the pod may decide in another way", name))
	}
	if w.Pod.Spec.SchedulingGroup != nil {
		all = append(all, "the other pods of the pod group are not considered")
	}
	return all
}

// Lacks returns what there is no answer without, or nil. Without all claims, there is one: claims that are not known
// can only take devices away.
func (c *Cluster) Lacks(w *Workload) *LackError {
	var extended bool
	if w.Pod != nil {
		extended = slices.ContainsFunc(slices.Collect(maps.Keys(RequestsOf(w.Pod))), IsExtended)
	}
	for _, one := range []struct {
		resource string
		needed   bool
	}{
		{cluster.Slices, len(w.Claims) > 0},
		{cluster.Classes, len(w.Claims) > 0 || extended},
		// Slices tell names of nodes, unless they are of several nodes. Only nodes tell of nodes without slices, and
		// what their device plugins offer.
		{cluster.Nodes, len(w.Claims) == 0 || extended || len(c.AllNodes) == 0 && len(c.Slices) > 0},
	} {
		if err := c.Unread[one.resource]; err != nil && one.needed {
			return &LackError{one.resource, err}
		}
	}
	return nil
}
