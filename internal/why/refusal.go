// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// This file says what the API server refuses, and what the node would refuse.

// refusal is why the API server refuses a claim or a template of a manifest, or may do so.
type refusal struct {
	cause string // "": it may accept the object
	note  string
}

// admins returns the namespaces of the claims and templates that ask for adminAccess, by the kind and the name of each.
func (m *Manifest) admins() map[string]string {
	all := map[string]string{}
	add := func(key, namespace string, claim *resourceapi.ResourceClaim) {
		if slices.ContainsFunc(cluster.Subrequests(&claim.Spec), func(p cluster.Subrequest) bool { return p.Admin }) {
			all[key] = namespace
		}
	}
	for _, claim := range m.Claims {
		add("claim "+claim.Namespace+"/"+claim.Name, claim.Namespace, claim)
	}
	for _, template := range m.Templates {
		add("template "+template.Namespace+"/"+template.Name, template.Namespace,
			schedule.ClaimOf(template, template.Name))
	}
	return all
}

// AdminNamespaces returns the namespaces whose label decides about adminAccess in the manifest, sorted.
func (m *Manifest) AdminNamespaces() []string {
	return slices.Compact(slices.Sorted(maps.Values(m.admins())))
}

// refusals returns what the API server refuses, or may refuse, for want of the label for adminAccess. What exists has
// passed.
func (m *Manifest) refusals(s *cluster.Snapshot) map[string]refusal {
	all := map[string]refusal{}
	for key, namespace := range m.admins() {
		needs := fmt.Sprintf("adminAccess needs the label %s=true of namespace %s",
			resourceapi.DRAAdminNamespaceLabelKey, namespace)
		of := m.Namespaces[namespace]
		switch {
		case of == nil:
			all[key] = refusal{note: needs + ", which could not be read"}
		case of.Labels[resourceapi.DRAAdminNamespaceLabelKey] != "true":
			all[key] = refusal{cause: key + " is refused: " + needs}
		}
	}
	for _, claim := range s.Claims {
		delete(all, "claim "+claim.Namespace+"/"+claim.Name)
	}
	for _, template := range s.Templates {
		delete(all, "template "+template.Namespace+"/"+template.Name)
	}
	return all
}

// refuse says why the API server refuses one of the objects, or may do so. Where it refuses one, nothing else matters.
// The cause begins with that text.
func (r *Answer) refuse(begins string, refusals map[string]refusal, keys ...string) {
	for _, key := range keys {
		of := refusals[key]
		if of.note != "" {
			r.Notes = append(r.Notes, of.note)
		}
		if of.cause != "" {
			*r = Answer{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name, UID: r.UID,
				ResourceVersion: r.ResourceVersion, Outcome: Waits, Cause: begins + of.cause,
				Search: Search{Complete: true}}
			return
		}
	}
}

// checkNodes says on which of the nodes that it fits on the workload would not start, because the node refuses it.
func (c *explainer) checkNodes(r *Answer, w *schedule.Workload, subject string) {
	var first *sharing.Refusal
	var nodes []string
	total, pod := 0, w.WithClaims()
	for _, p := range r.placements {
		total += len(p.Group.Names)
		if refusal := c.Refusal(pod, w, p); refusal != nil {
			first, nodes = cmp.Or(first, refusal), append(nodes, p.Group.Names...)
		}
	}
	switch {
	case first == nil:
	case len(nodes) < total:
		r.Notes = append(r.Notes, fmt.Sprintf("%s would not start on %d of these nodes, such as %s, because the node "+
			"refuses it: %s", subject, len(nodes), nodes[0], first.Text()))
	default:
		r.refused(subject+" would get devices and not start, because its node refuses it", first)
	}
}

// refused fills in the answer about a pod or claim that its node refuses.
func (r *Answer) refused(subject string, why *sharing.Refusal) {
	without := *why
	r.Outcome, r.Places = Waits, nil
	if without.Change = ""; why.Change != "" {
		r.Change = []advice.Change{{Kind: advice.ChangePod, In: r.Kind + " " + r.Namespace + "/" + r.Name,
			Text: why.Change}}
	}
	r.Cause = subject + ": " + without.Text()
}
