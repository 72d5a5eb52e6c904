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

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
)

// maxHolders is how many claims an answer has, and shownHolders how many its text lists.
const maxHolders, shownHolders = 20, 5

// explanation says why a workload does not fit.
type explanation struct {
	*question
	candidates map[schedule.RequestID][]schedule.Candidate
}

// excluded counts the nodes that the pod excludes.
func (q *question) excluded() []NodeReason {
	count := map[string]int{}
	for _, s := range q.Groups {
		for _, reason := range q.Workload.Excludes(q.Cluster, s.Node) {
			count[reason] += len(s.Names)
		}
	}
	var all []NodeReason
	for _, reason := range slices.Sorted(maps.Keys(count)) {
		all = append(all, NodeReason{reason, count[reason]})
	}
	slices.SortStableFunc(all, func(a, b NodeReason) int { return b.Nodes - a.Nodes })
	return all
}

// once returns the candidates with each device of several nodes only once.
func once(candidates []schedule.Candidate) []schedule.Candidate {
	seen := map[*resourceapi.Device]bool{}
	return slices.DeleteFunc(slices.Clone(candidates), func(f schedule.Candidate) bool {
		known := seen[f.Device]
		seen[f.Device] = true
		return known
	})
}

// requests counts what each subrequest loses.
func (e *explanation) requests() []RequestLosses {
	var all []RequestLosses
	for i, claim := range e.Workload.Claims {
		for j, p := range cluster.Subrequests(&claim.Spec) {
			r := RequestLosses{Claim: claim.Name, Request: p.Name}
			if !p.All() {
				r.Wanted = *p.Count
			}
			onGroup := map[*schedule.Group]int{}
			losses, nodes := map[schedule.Reason]*Loss{}, map[schedule.Reason]map[*schedule.Group]bool{}
			for _, f := range once(e.candidates[schedule.RequestID{Claim: i, Number: j}]) {
				r.Devices += f.NodesOf()
				if len(f.Reasons) == 0 {
					r.Left += f.NodesOf()
					onGroup[f.Group]++
					r.MostOnOneNode = max(r.MostOnOneNode, onGroup[f.Group])
					continue
				}
				first := f.Reasons[0]
				if losses[first] == nil {
					losses[first] = &Loss{Kind: first.Kind, Detail: first.Detail}
					nodes[first] = map[*schedule.Group]bool{}
				}
				losses[first].Devices += f.NodesOf()
				if len(f.Reasons) == 1 {
					losses[first].Alone += f.NodesOf()
				}
				if !nodes[first][f.Group] {
					nodes[first][f.Group] = true
					losses[first].Nodes += f.NodesOf()
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

func lossRank(kind schedule.LossKind) int {
	return slices.Index(schedule.LossKinds, kind)
}

// holders returns the claims that hold devices which a subrequest would otherwise get.
func (e *explanation) holders() []Holder {
	wanted := map[cluster.PoolID]bool{}
	onGroup := map[*schedule.Group]bool{}
	for _, list := range e.candidates {
		for _, f := range list {
			if len(f.Reasons) > 0 && f.Reasons[0].Kind == schedule.LostHeld {
				wanted[cluster.PoolOf(f.Slice)], onGroup[f.Group] = true, true
			}
		}
	}
	var all []Holder
	seen := map[*resourceapi.ResourceClaim]bool{}
	for _, s := range e.Groups {
		if !onGroup[s] {
			continue
		}
		for _, claim := range s.Holders {
			hidden := e.HideOthers && claim.Namespace != e.Workload.Namespace()
			if hidden || seen[claim] || !slices.ContainsFunc(schedule.PoolsHeldBy(claim),
				func(id cluster.PoolID) bool {
					return wanted[id]
				}) {
				continue
			}
			seen[claim] = true
			h := Holder{Claim: claim.Namespace + "/" + claim.Name, Node: s.Node.Name, Devices: devicesOf(claim)}
			if since := cluster.Since(claim); since != nil {
				h.Since = &since.Time
			}
			h.Pods = schedule.UsersOf(claim)
			all = append(all, h)
		}
	}
	others := func(h Holder) int { // those of the own namespace come first: its user can end them
		if strings.HasPrefix(h.Claim, e.Workload.Namespace()+"/") {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(others(a), others(b)), cmp.Compare(a.Claim, b.Claim))
	})
	return all[:min(len(all), maxHolders)]
}

// devicesOf returns the names of the claim's devices.
func devicesOf(claim *resourceapi.ResourceClaim) []string {
	var all []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		all = append(all, r.Device)
	}
	return all
}

// causes are asked one after the other: the first that has a text is the cause of a workload that does not fit. problem
// is the error of the allocator.
var causes = []func(e *explanation, problem error) string{
	(*explanation).classCause,
	(*explanation).resourceCause,
	(*explanation).quotaCause,
	(*explanation).emptyCause,
	(*explanation).mistakeCause,
	(*explanation).problemCause,
	(*explanation).nodeCause,
	(*explanation).requestCauses,
	(*explanation).claimCauses,
}

// cause says in one sentence why the workload does not fit.
func (e *explanation) cause(problem error) string {
	for _, of := range causes {
		if text := of(e, problem); text != "" {
			return text
		}
	}
	return "each of its claims fits on some node, but no node has the devices of all"
}

// classCause names a class that does not exist.
func (e *explanation) classCause(error) string {
	for i, claim := range e.Workload.Claims {
		for _, p := range cluster.Subrequests(&claim.Spec) {
			if e.ClassByName[*p.Class] == nil {
				return e.missingClass(p, e.Workload.Origins[i])
			}
		}
	}
	return ""
}

// resourceCause names an extended resource that nothing offers.
func (e *explanation) resourceCause(error) string {
	if e.Unread[cluster.Nodes] != nil || len(e.AllNodes) == 0 {
		return ""
	}
	return e.unofferedResource()
}

// quotaCause names a limit of quotas that the workload would exceed on the first node where it exceeds any.
func (e *explanation) quotaCause(error) string {
	for _, s := range e.Groups {
		if over := e.OverQuota(e.Workload, s.Node); len(over) > 0 {
			return over[0]
		}
	}
	return ""
}

// emptyCause says that there are no nodes or no devices at all.
func (e *explanation) emptyCause(error) string {
	switch {
	case len(e.AllNodes) == 0 && e.Unread[cluster.Nodes] == nil:
		return "the cluster has no nodes"
	case len(e.Slices) == 0 && len(e.Workload.Claims) > 0 && !e.Workload.Extended():
		return "no node offers devices: there is no ResourceSlice"
	}
	return ""
}

// problemCause says that the allocator has no answer.
func (e *explanation) problemCause(problem error) string {
	switch {
	case errors.Is(problem, schedule.ErrLimit):
		return "the allocator did not find devices in the time that the scheduler gives it"
	case problem != nil:
		return "the scheduler gives up with an error: " + problem.Error()
	}
	return ""
}

// nodeCause returns the cause if there are devices, but only on nodes that the pod excludes.
func (e *explanation) nodeCause(error) string {
	var reasons []string
	nodes, late := 0, false
	e.Until = time.Now().Add(e.Limits.Ask)
	defer func() { e.Until = time.Time{} }()
	for _, s := range e.Groups {
		because := e.Workload.Excludes(e.Cluster, s.Node)
		if len(because) == 0 || e.Workload.Pod != nil && slices.ContainsFunc(e.Short(e.Workload.Pod, s.Node),
			func(name corev1.ResourceName) bool { return e.ClassOf(name) != nil }) {
			continue // its device plugin has too few devices
		}
		if len(e.Workload.Claims) > 0 {
			if results, err := e.Ask(e.Workload, s); err != nil || len(results) == 0 {
				late = late || errors.Is(err, schedule.ErrLimit)
				continue
			}
		}
		nodes += len(s.Names)
		reasons = append(reasons, because...)
	}
	if nodes == 0 {
		if len(e.Open()) > 0 {
			return ""
		}
		text := fmt.Sprintf("the pod excludes all %d nodes, most often by %s", len(e.AllNodes), e.excluded()[0].Reason)
		if late {
			return text + "; the allocator did not say in time whether any of them has the devices"
		}
		return text + "; none of them has the devices"
	}
	slices.Sort(reasons)
	what := "the devices"
	if len(e.Workload.Claims) == 0 {
		what = "what else the pod needs"
	}
	return fmt.Sprintf("%d %s %s, and the pod cannot run there: %s", nodes,
		schedule.Plural(nodes, "node has", "nodes have"), what, strings.Join(slices.Compact(reasons), "; "))
}

// onlyRequest returns the workload with only one request, without constraints.
func (e *explanation) onlyRequest(claim, request int) *schedule.Workload {
	w := e.Workload.Clone()
	one := w.Claims[claim]
	one.Spec.Devices.Requests = one.Spec.Devices.Requests[request : request+1]
	one.Spec.Devices.Constraints = nil
	w.Claims, w.Origins = w.Claims[claim:claim+1], w.Origins[claim:claim+1]
	return w
}

// requestCauses says why the first request that does not fit alone does not.
func (e *explanation) requestCauses(error) string {
	for i, claim := range e.Workload.Claims {
		for r := range claim.Spec.Devices.Requests {
			if !e.Fits(e.onlyRequest(i, r)) {
				return e.requestCause(i, r)
			}
		}
	}
	return ""
}

// requestCause says why a request does not fit, even alone.
func (e *explanation) requestCause(claim, request int) string {
	var texts []string
	for j, p := range cluster.Subrequests(&e.Workload.Claims[claim].Spec) {
		if p.Request != request || p.Alternative >= 0 && p.MatchesNothing() {
			continue
		}
		text := e.subrequestCause(p, once(e.candidates[schedule.RequestID{Claim: claim, Number: j}]))
		texts = append(texts, text)
	}
	name := e.Workload.Claims[claim].Spec.Devices.Requests[request].Name
	if e.Workload.Ranked[schedule.RequestID{Claim: claim, Number: request}] {
		return fmt.Sprintf("request %s of %s gets the strongest device that is free, and none is: %s", name,
			e.Workload.Origins[claim].Label, strings.Join(texts, "; "))
	}
	if len(texts) == 1 {
		return fmt.Sprintf("request %s of %s: %s", name, e.Workload.Origins[claim].Label, texts[0])
	}
	return fmt.Sprintf("request %s of %s: no alternative fits: %s", name, e.Workload.Origins[claim].Label,
		strings.Join(texts, "; "))
}

// subrequestCause says why a subrequest does not get its devices.
func (e *explanation) subrequestCause(p cluster.Subrequest, candidates []schedule.Candidate) string {
	count := map[schedule.Reason]int{}
	ofClass, left := 0, 0
	perGroup, onNode, total := map[*schedule.Group]int64{}, map[*schedule.Group]int64{}, int64(0)
	for _, f := range candidates {
		if !f.InClass() {
			continue
		}
		ofClass += f.NodesOf()
		if len(f.Reasons) == 0 || f.Reasons[0].Kind == schedule.LostTaint || f.Reasons[0].Kind == schedule.LostHeld {
			onNode[f.Group]++
			total = max(total, onNode[f.Group])
		}
		if len(f.Reasons) == 0 {
			left += f.NodesOf()
			perGroup[f.Group]++
			continue
		}
		count[f.Reasons[0]] += f.NodesOf()
	}
	if ofClass == 0 {
		return "no node has a device of class " + *p.Class + e.classHint(*p.Class)
	}
	reasons := slices.SortedFunc(maps.Keys(count), func(a, b schedule.Reason) int {
		return cmp.Or(count[b]-count[a], lossRank(a.Kind)-lossRank(b.Kind), strings.Compare(a.Detail, b.Detail))
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
			if bound, err := e.Most(s, s.Held, p); err == nil {
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
func singleLoss(r schedule.Reason, devices int, class string) string {
	of := fmt.Sprintf("%d %s of class %s", devices, schedule.Plural(devices, "device", "devices"), class)
	switch r.Kind {
	case schedule.LostClause:
		return fmt.Sprintf("none of the %s meets %s", of, r.Detail)
	case schedule.LostTaint:
		return fmt.Sprintf("each of the %s %s", of, taintText(1, r.Detail))
	case schedule.LostCapacity:
		return fmt.Sprintf("none of the %s has the requested capacity, even when free: %s", of,
			strings.TrimPrefix(r.Detail, "less capacity than requested: "))
	case schedule.LostHeld:
		return fmt.Sprintf("the %s are held by other claims", of)
	}
	return fmt.Sprintf("none of the %s can be had: %s", of, r.Detail)
}

// lossTexts lists the losses, the largest first.
func lossTexts(reasons []schedule.Reason, count map[schedule.Reason]int) string {
	const most = 4
	var all []string
	for i, r := range reasons {
		if i == most {
			all = append(all, fmt.Sprintf("and %d more reasons", len(reasons)-most))
			break
		}
		n := count[r]
		text := map[schedule.LossKind]string{
			schedule.LostClause:   schedule.Plural(n, "does", "do") + " not meet " + r.Detail,
			schedule.LostTaint:    taintText(n, r.Detail),
			schedule.LostCapacity: schedule.Plural(n, "has ", "have ") + r.Detail,
			schedule.LostHeld:     schedule.Plural(n, "is ", "are ") + r.Detail,
		}[r.Kind]
		all = append(all, fmt.Sprintf("%d %s", n, cmp.Or(text, r.Detail)))
	}
	return strings.Join(all, ", ")
}

// claimCauses says why the first claim that does not fit alone does not.
func (e *explanation) claimCauses(error) string {
	for i := range e.Workload.Claims {
		if text := e.claimCause(i); text != "" {
			return text
		}
	}
	return ""
}

// claimCause says why a claim does not fit whose requests fit one by one.
func (e *explanation) claimCause(claim int) string {
	w := e.Workload.Clone()
	w.Claims, w.Origins = w.Claims[claim:claim+1], w.Origins[claim:claim+1]
	if e.Fits(w) {
		return ""
	}
	label := e.Workload.Origins[claim].Label
	constraints := w.Claims[0].Spec.Devices.Constraints
	w.Claims[0].Spec.Devices.Constraints = nil
	if !e.Fits(w) {
		return fmt.Sprintf("each request of %s fits on some node, but no node has the devices of all", label)
	}
	for i, c := range constraints {
		w.Claims[0].Spec.Devices.Constraints = slices.Delete(slices.Clone(constraints), i, i+1)
		if e.Fits(w) {
			return fmt.Sprintf("no node has devices for %s that meet the constraint %s", label,
				advice.ConstraintText(c))
		}
	}
	return fmt.Sprintf("no node has devices for %s that meet its constraints", label)
}
