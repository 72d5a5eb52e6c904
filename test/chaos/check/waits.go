// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Margin is how much longer than the longest outage something may wait after an outage, unless Waits says otherwise.
const Margin = 2 * time.Minute

// Outage is what is known of the times in which the cluster was broken.
type Outage struct {
	Ongoing bool
	End     time.Time     // of the last one
	Longest time.Duration // so far
}

// Waits finds what waits for too long. The zero value is ready to use.
type Waits struct {
	Margin time.Duration // 0: the constant
	since  map[string]time.Time
}

// Look judges what waits now. While an outage lasts, nothing is stuck; afterwards, the time counts from its end.
// Without pods, everything that was not there before any of them is waited for, too.
func (w *Waits) Look(now World, at time.Time, outage Outage, left ...string) []Violation {
	waiting := slices.Concat(now.waiting(), left)
	since := map[string]time.Time{}
	var found []Violation
	for _, what := range waiting {
		since[what] = at
		if first, ok := w.since[what]; ok {
			since[what] = first
		}
		from := since[what]
		if outage.End.After(from) {
			from = outage.End
		}
		if limit := outage.Longest + cmp.Or(w.Margin, Margin); !outage.Ongoing && at.Sub(from) > limit {
			rule := Stuck
			if slices.Contains(left, what) {
				rule = Left
			}
			found = append(found, Violation{rule, fmt.Sprintf("%s, %s after the last outage", what,
				limit.Round(time.Second))})
		}
	}
	w.since = since
	return found
}

// waiting returns what something is still to be done about.
func (w World) waiting() []string {
	pods := map[string]bool{}
	var out []string
	for i := range w.Pods {
		p := &w.Pods[i]
		pods[string(p.UID)] = true
		switch {
		case p.DeletionTimestamp != nil:
			out = append(out, fmt.Sprintf("pod %s/%s (%s) on %q is deleted and does not end", p.Namespace, p.Name,
				p.UID, p.Spec.NodeName))
		case p.Spec.NodeName != "" && p.Status.Phase == corev1.PodPending:
			out = append(out, fmt.Sprintf("pod %s/%s (%s) on %s does not start", p.Namespace, p.Name, p.UID,
				p.Spec.NodeName))
		}
	}
	for i := range w.Claims {
		c := &w.Claims[i]
		if c.DeletionTimestamp != nil {
			out = append(out, fmt.Sprintf("claim %s/%s (%s) is deleted and does not go", c.Namespace, c.Name, c.UID))
		}
		if len(c.Status.ReservedFor) > 0 && !slices.ContainsFunc(c.Status.ReservedFor,
			func(r resourceapi.ResourceClaimConsumerReference) bool { return pods[string(r.UID)] }) {
			out = append(out, fmt.Sprintf("claim %s/%s (%s) is reserved for pods that are gone", c.Namespace, c.Name,
				c.UID))
		}
	}
	return out
}

// Rest returns what is left, in comparison with a world without pods. The other worlds must have every node.
func (w World) Rest(clean World) []string {
	var out []string
	for _, line := range w.residue() {
		if !slices.Contains(clean.residue(), line) {
			out = append(out, line)
		}
	}
	for _, line := range clean.residue() { // hardware that is no longer as it was
		if !slices.Contains(w.residue(), line) {
			out = append(out, "no more "+line)
		}
	}
	return out
}

func (w World) residue() []string {
	var out []string
	for i := range w.Pods {
		out = append(out, "pod "+w.Pods[i].Namespace+"/"+w.Pods[i].Name)
	}
	for i := range w.Claims {
		out = append(out, "claim "+w.Claims[i].Namespace+"/"+w.Claims[i].Name)
	}
	for _, taint := range w.Taints {
		out = append(out, "taint "+taint)
	}
	for name, n := range w.Nodes {
		for _, line := range slices.Concat(n.Machine, n.Left) {
			out = append(out, name+": "+strings.TrimSpace(line))
		}
		for _, c := range n.Containers {
			out = append(out, name+": container "+c.Name+" of pod "+string(c.Pod))
		}
	}
	slices.Sort(out)
	return out
}
