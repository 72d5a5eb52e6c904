// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
)

// maxHolders is how many claims a report lists.
const maxHolders = 20

// explanation says why a workload does not fit.
type explanation struct {
	*question
	candidates map[requestID][]candidate
}

// open returns the groups that the pod does not exclude.
func (q *question) open() []*nodeGroup {
	var all []*nodeGroup
	for _, s := range q.groups {
		if len(q.w.excludes(q.index, s.node)) == 0 {
			all = append(all, s)
		}
	}
	return all
}

// excluded counts the nodes that the pod excludes.
func (q *question) excluded() []NodeReason {
	count := map[string]int{}
	for _, s := range q.groups {
		for _, reason := range q.w.excludes(q.index, s.node) {
			count[reason] += len(s.names)
		}
	}
	var all []NodeReason
	for _, reason := range slices.Sorted(maps.Keys(count)) {
		all = append(all, NodeReason{reason, count[reason]})
	}
	slices.SortStableFunc(all, func(a, b NodeReason) int { return b.Nodes - a.Nodes })
	return all
}

// compareAll compares each subrequest of each claim with the devices of the nodes that the pod does not exclude. If it
// excludes all, those of all nodes are compared. The error is errLimit.
func (q *question) compareAll() (map[requestID][]candidate, error) {
	groups := q.open()
	if len(groups) == 0 {
		groups = q.groups
	}
	all, left := map[requestID][]candidate{}, maxCandidates
	for i, claim := range q.w.claims {
		for j, p := range cluster.Subrequests(&claim.Spec) {
			if q.classes[*p.Class] == nil {
				continue
			}
			of, err := q.compare(i, j, groups, left)
			if err != nil {
				return nil, err
			}
			all[requestID{i, j}], left = of, left-len(of)
		}
	}
	return all, nil
}

// nodesOf returns how many nodes have the device of the candidate.
func (f candidate) nodesOf() int {
	if ptr.Deref(f.slice.Spec.NodeName, "") == "" {
		return 1
	}
	return len(f.group.names)
}

// once returns the candidates with each device of several nodes only once.
func once(candidates []candidate) []candidate {
	seen := map[*resourceapi.Device]bool{}
	return slices.DeleteFunc(slices.Clone(candidates), func(f candidate) bool {
		known := seen[f.device]
		seen[f.device] = true
		return known
	})
}

// requests counts what each subrequest loses.
func (e *explanation) requests() []RequestLosses {
	var all []RequestLosses
	for i, claim := range e.w.claims {
		for j, p := range cluster.Subrequests(&claim.Spec) {
			r := RequestLosses{Claim: claim.Name, Request: p.Name}
			if !p.All() {
				r.Wanted = *p.Count
			}
			onGroup, losses, nodes := map[*nodeGroup]int{}, map[reason]*Loss{}, map[reason]map[*nodeGroup]bool{}
			for _, f := range once(e.candidates[requestID{i, j}]) {
				r.Devices += f.nodesOf()
				if len(f.reasons) == 0 {
					r.Left += f.nodesOf()
					onGroup[f.group]++
					r.MostOnOneNode = max(r.MostOnOneNode, onGroup[f.group])
					continue
				}
				first := f.reasons[0]
				if losses[first] == nil {
					losses[first], nodes[first] = &Loss{Kind: first.kind, Detail: first.detail}, map[*nodeGroup]bool{}
				}
				losses[first].Devices += f.nodesOf()
				if len(f.reasons) == 1 {
					losses[first].Alone += f.nodesOf()
				}
				if !nodes[first][f.group] {
					nodes[first][f.group] = true
					losses[first].Nodes += f.nodesOf()
				}
			}
			for _, l := range losses {
				r.Losses = append(r.Losses, *l)
			}
			slices.SortFunc(r.Losses, func(a, b Loss) int {
				return cmp.Or(lossRank(a.Kind)-lossRank(b.Kind), b.Devices-a.Devices,
					strings.Compare(a.Detail, b.Detail))
			})
			all = append(all, r)
		}
	}
	return all
}

func lossRank(kind LossKind) int {
	return slices.Index([]LossKind{LostIncomplete, LostClass, LostClause, LostError, LostTaint, LostCapacity, LostHeld},
		kind)
}

// holders returns the claims that hold devices which a subrequest would otherwise get.
func (e *explanation) holders() []Holder {
	wanted := map[cluster.PoolID]bool{}
	onGroup := map[*nodeGroup]bool{}
	for _, list := range e.candidates {
		for _, f := range list {
			if len(f.reasons) > 0 && f.reasons[0].kind == LostHeld {
				wanted[cluster.PoolOf(f.slice)], onGroup[f.group] = true, true
			}
		}
	}
	var all []Holder
	seen := map[*resourceapi.ResourceClaim]bool{}
	for _, s := range e.groups {
		if !onGroup[s] {
			continue
		}
		for _, claim := range s.holders {
			if seen[claim] || len(all) == maxHolders || !slices.ContainsFunc(poolsHeldBy(claim),
				func(id cluster.PoolID) bool {
					return wanted[id]
				}) {
				continue
			}
			seen[claim] = true
			h := Holder{Claim: claim.Namespace + "/" + claim.Name, Node: s.node.Name, Devices: devicesOf(claim)}
			if since := cluster.Since(claim); since != nil {
				h.Since = &since.Time
			}
			h.Pods = usersOf(claim)
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b Holder) int { return strings.Compare(a.Claim, b.Claim) })
	return all
}

// usersOf returns the names of the pods and other objects that use the claim.
func usersOf(claim *resourceapi.ResourceClaim) (all []string) {
	for _, user := range claim.Status.ReservedFor {
		name := user.Name
		if user.Resource != "pods" {
			name = user.Resource + "/" + name
		}
		all = append(all, name)
	}
	return all
}

// deleted says that the claim is being deleted, and what it waits for.
func deleted(claim *resourceapi.ResourceClaim) string {
	text := "claim " + claim.Name + " is being deleted"
	if users := usersOf(claim); len(users) > 0 {
		text += fmt.Sprintf(", and stays until those end that use it (%s)",
			strings.Join(users[:min(len(users), selectors.ShownTexts)], ", "))
	}
	return text + "; create it again when it has gone"
}

// devicesOf returns the names of the claim's devices.
func devicesOf(claim *resourceapi.ResourceClaim) []string {
	var all []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		all = append(all, r.Device)
	}
	return all
}

// cause says in one sentence why the workload does not fit.
func (e *explanation) cause(problem error) string {
	for i, claim := range e.w.claims {
		for _, p := range cluster.Subrequests(&claim.Spec) {
			if e.classes[*p.Class] == nil {
				return e.missingClass(p, e.w.origins[i])
			}
		}
	}
	if text := e.unofferedResource(); text != "" && e.Unread[cluster.Nodes] == nil && len(e.nodes) > 0 {
		return text
	}
	switch over := e.overQuotas(); {
	case len(over) > 0:
		return over[0]
	case len(e.nodes) == 0 && e.Unread[cluster.Nodes] == nil:
		return "the cluster has no nodes"
	case len(e.Slices) == 0 && len(e.w.claims) > 0 && !e.w.extended():
		return "no node offers devices: there is no ResourceSlice"
	}
	if text := e.mistakeCause(problem); text != "" {
		return text
	}
	switch {
	case errors.Is(problem, errLimit):
		return "the allocator did not find devices in the time that the scheduler gives it"
	case problem != nil:
		return "the scheduler gives up with an error: " + problem.Error()
	}
	if text := e.nodeCause(); text != "" {
		return text
	}
	for i, claim := range e.w.claims {
		for r := range claim.Spec.Devices.Requests {
			if !e.fits(e.onlyRequest(i, r, 0)) {
				return e.requestCause(i, r)
			}
		}
	}
	for i := range e.w.claims {
		if text := e.claimCause(i); text != "" {
			return text
		}
	}
	return "each of its claims fits on some node, but no node has the devices of all"
}

// overQuotas returns the limits of quotas that the workload would exceed on the first node where it exceeds any.
func (e *explanation) overQuotas() []string {
	for _, s := range e.groups {
		if over := e.overQuota(e.w, s.node); len(over) > 0 {
			return over
		}
	}
	return nil
}

// fits reports whether the workload fits on a node.
func (q *question) fits(w *workload) bool {
	found, err := q.place(w, q.groups)
	return err == nil && found != nil
}

// nodeCause returns the cause if there are devices, but only on nodes that the pod excludes.
func (e *explanation) nodeCause() string {
	var reasons []string
	nodes, late := 0, false
	e.until = time.Now().Add(askTimeout)
	defer func() { e.until = time.Time{} }()
	for _, s := range e.groups {
		because := e.w.excludes(e.index, s.node)
		if len(because) == 0 || e.w.pod != nil && slices.ContainsFunc(e.short(e.w.pod, s.node),
			func(name corev1.ResourceName) bool { return e.ofClass(name) != nil }) {
			continue // its device plugin has too few devices
		}
		if len(e.w.claims) > 0 {
			if results, err := e.ask(e.w, s); err != nil || len(results) == 0 {
				late = late || errors.Is(err, errLimit)
				continue
			}
		}
		nodes += len(s.names)
		reasons = append(reasons, because...)
	}
	if nodes == 0 {
		if len(e.open()) > 0 {
			return ""
		}
		text := fmt.Sprintf("the pod excludes all %d nodes, most often by %s", len(e.nodes), e.excluded()[0].Reason)
		if late {
			return text + "; the allocator did not say in time whether any of them has the devices"
		}
		return text + "; none of them has the devices"
	}
	slices.Sort(reasons)
	what := "the devices"
	if len(e.w.claims) == 0 {
		what = "what else the pod needs"
	}
	return fmt.Sprintf("%d %s %s, and the pod cannot run there: %s", nodes, plural(nodes, "node has", "nodes have"),
		what, strings.Join(slices.Compact(reasons), "; "))
}

// onlyRequest returns the workload with only one request, without constraints, for that many devices; 0: as many as it
// wants.
func (e *explanation) onlyRequest(claim, request int, count int64) *workload {
	w := e.w.clone()
	one := w.claims[claim]
	one.Spec.Devices.Requests = one.Spec.Devices.Requests[request : request+1]
	one.Spec.Devices.Constraints = nil
	w.claims, w.origins = w.claims[claim:claim+1], w.origins[claim:claim+1]
	if count > 0 {
		for _, p := range cluster.Subrequests(&one.Spec) {
			*p.Mode, *p.Count = resourceapi.DeviceAllocationModeExactCount, count
		}
	}
	return w
}

// requestCause says why a request does not fit, even alone.
func (e *explanation) requestCause(claim, request int) string {
	var texts []string
	for j, p := range cluster.Subrequests(&e.w.claims[claim].Spec) {
		if p.Request != request || p.Alternative >= 0 && p.MatchesNothing() {
			continue
		}
		text := e.subrequestCause(p, once(e.candidates[requestID{claim, j}]))
		texts = append(texts, text)
	}
	name := e.w.claims[claim].Spec.Devices.Requests[request].Name
	if e.w.ranked[requestID{claim, request}] {
		return fmt.Sprintf("request %s of %s gets the strongest device that is free, and none is: %s", name,
			e.w.origins[claim].label, strings.Join(texts, "; "))
	}
	if len(texts) == 1 {
		return fmt.Sprintf("request %s of %s: %s", name, e.w.origins[claim].label, texts[0])
	}
	return fmt.Sprintf("request %s of %s: no alternative fits: %s", name, e.w.origins[claim].label,
		strings.Join(texts, "; "))
}

// subrequestCause says why a subrequest does not get its devices.
func (e *explanation) subrequestCause(p cluster.Subrequest, candidates []candidate) string {
	count := map[reason]int{}
	ofClass, left := 0, 0
	perGroup, onNode, total := map[*nodeGroup]int64{}, map[*nodeGroup]int64{}, int64(0)
	for _, f := range candidates {
		if !f.ofClass() {
			continue
		}
		ofClass += f.nodesOf()
		if len(f.reasons) == 0 || f.reasons[0].kind == LostTaint || f.reasons[0].kind == LostHeld {
			onNode[f.group]++
			total = max(total, onNode[f.group])
		}
		if len(f.reasons) == 0 {
			left += f.nodesOf()
			perGroup[f.group]++
			continue
		}
		count[f.reasons[0]] += f.nodesOf()
	}
	if ofClass == 0 {
		return "no node has a device of class " + *p.Class + e.classHint(*p.Class)
	}
	reasons := slices.SortedFunc(maps.Keys(count), func(a, b reason) int {
		return cmp.Or(count[b]-count[a], lossRank(a.kind)-lossRank(b.kind), strings.Compare(a.detail, b.detail))
	})
	if free := slices.Max(append(slices.Collect(maps.Values(perGroup)), 0)); free < total && total < *p.Count {
		return fmt.Sprintf("it wants %d devices of one node, and no node has more than %d, or more than %d free",
			*p.Count, total, free)
	}
	if left > 0 {
		if p.All() {
			return "it wants all devices that match, and on no node can it have all; " + lossTexts(reasons, count)
		}
		most := int64(0)
		for s, n := range perGroup {
			if bound, err := e.most(s, s.held, p); err == nil {
				n = min(n, bound) // partitions exclude each other
			}
			most = max(most, n)
		}
		text := fmt.Sprintf("it wants %d devices of one node, and no node has more than %d for it", *p.Count, most)
		if len(reasons) > 0 {
			text += "; of the others, " + lossTexts(reasons, count)
		}
		return text
	}
	if len(reasons) == 1 {
		return singleLoss(reasons[0], ofClass, *p.Class)
	}
	return fmt.Sprintf("none of the %d devices of class %s is left: %s", ofClass, *p.Class, lossTexts(reasons, count))
}

// singleLoss says what excludes all devices.
func singleLoss(r reason, devices int, class string) string {
	of := fmt.Sprintf("%d %s of class %s", devices, plural(devices, "device", "devices"), class)
	switch r.kind {
	case LostClause:
		return fmt.Sprintf("none of the %s meets %s", of, r.detail)
	case LostTaint:
		return fmt.Sprintf("each of the %s %s", of, taintText(1, r.detail))
	case LostCapacity:
		return fmt.Sprintf("none of the %s has the requested capacity, even when free: %s", of,
			strings.TrimPrefix(r.detail, "less capacity than requested: "))
	case LostHeld:
		return fmt.Sprintf("the %s are held by other claims", of)
	}
	return fmt.Sprintf("none of the %s can be had: %s", of, r.detail)
}

// lossTexts lists the losses, the largest first.
func lossTexts(reasons []reason, count map[reason]int) string {
	const most = 4
	var all []string
	for i, r := range reasons {
		if i == most {
			all = append(all, fmt.Sprintf("and %d more reasons", len(reasons)-most))
			break
		}
		n := count[r]
		text := map[LossKind]string{LostClause: plural(n, "does", "do") + " not meet " + r.detail,
			LostTaint: taintText(n, r.detail), LostCapacity: plural(n, "has ", "have ") + r.detail,
			LostHeld: plural(n, "is ", "are ") + r.detail}[r.kind]
		all = append(all, fmt.Sprintf("%d %s", n, cmp.Or(text, r.detail)))
	}
	return strings.Join(all, ", ")
}

// claimCause says why a claim does not fit whose requests fit one by one.
func (e *explanation) claimCause(claim int) string {
	w := e.w.clone()
	w.claims, w.origins = w.claims[claim:claim+1], w.origins[claim:claim+1]
	if e.fits(w) {
		return ""
	}
	label := e.w.origins[claim].label
	constraints := w.claims[0].Spec.Devices.Constraints
	w.claims[0].Spec.Devices.Constraints = nil
	if !e.fits(w) {
		return fmt.Sprintf("each request of %s fits on some node, but no node has the devices of all", label)
	}
	for i, c := range constraints {
		w.claims[0].Spec.Devices.Constraints = slices.Delete(slices.Clone(constraints), i, i+1)
		if e.fits(w) {
			return fmt.Sprintf("no node has devices for %s that meet the constraint %s", label, constraintText(c))
		}
	}
	return fmt.Sprintf("no node has devices for %s that meet its constraints", label)
}
