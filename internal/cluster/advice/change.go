// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
)

// ChangeKind is what a change does.
type ChangeKind string

// The kinds of changes, in the order in which they are preferred.
const (
	Correct        ChangeKind = "Correct"        // the name or the value that was likely meant
	Guard          ChangeKind = "Guard"          // test for an attribute before it is used
	RelaxClause    ChangeKind = "RelaxClause"    // another limit in a clause of an expression
	LowerCapacity  ChangeKind = "LowerCapacity"  // a smaller amount in capacity.requests
	LowerCount     ChangeKind = "LowerCount"     // fewer devices
	Wait           ChangeKind = "Wait"           // until another claim has ended
	DropConstraint ChangeKind = "DropConstraint" // without a constraint
	DropCapacity   ChangeKind = "DropCapacity"   // without an entry of capacity.requests
	DropClause     ChangeKind = "DropClause"     // without a clause of an expression
	Tolerate       ChangeKind = "Tolerate"       // a toleration of a device's taint
	UseClass       ChangeKind = "UseClass"       // another device class
	ChangePod      ChangeKind = "ChangePod"      // node selector, affinity, tolerations or resources of the pod
)

// Change is one change of a claim or pod, or one claim to wait for.
type Change struct {
	Kind ChangeKind `json:"kind"`
	// In is the object to change, such as "ResourceClaimTemplate ns/name". For Wait, it is the claim to wait for.
	In      string `json:"in"`
	Request string `json:"request,omitempty"`
	Text    string `json:"text"`
}

// Proposal is a possible change of a workload. It has levels from mild to loose: each admits what the one before
// admits, and more.
type Proposal struct {
	Kind    ChangeKind
	in      string
	request string
	Target  target
	Levels  int
	Text    func(level int) string
	apply   func(w *schedule.Workload, level int)
	only    *schedule.Group // the only nodes where the change helps by itself; nil: any
	// try are the levels to try one by one, if a looser level may admit less: a request for all devices gets none if it
	// matches one that it cannot have. nil: the looser the better.
	try []int
}

// target is what a change changes. Changes of one target replace each other, as another limit and no limit in one
// clause.
type target struct {
	field   string // of a request, claim or pod, or "wait"
	request schedule.RequestID
	// number is that of a selector and its clause, of a constraint, or of a container and its resource.
	number, clause int
	name           string // of a capacity, taint, label or resource, or the UID of a claim
}

// clauseOf returns what changes of one clause have in common.
func clauseOf(r schedule.SelectorRef, number int) target {
	return target{field: "clause", request: r.RequestID, number: r.Selector, clause: number}
}

// rank orders the kinds of changes: the first are preferred.
func (c *Proposal) rank() int { return slices.Index(kinds, c.Kind) }

// kinds are all kinds, in the order in which they are preferred.
var kinds = []ChangeKind{Correct, Guard, RelaxClause, LowerCapacity, LowerCount, Wait, DropConstraint, DropCapacity,
	DropClause, Tolerate, UseClass, ChangePod}

// proposals lists the changes of a workload that the package knows.
type proposals struct {
	*schedule.Question
	Candidates map[schedule.RequestID][]schedule.Candidate
}

func one(text string) func(int) string { return func(int) string { return text } }

// Changes returns all changes, in the order of their rank, and the claims to wait for on each group of nodes.
func (ps *proposals) Changes() (ofClaims []*Proposal, waits []*Proposal) {
	of := make([][]*Proposal, len(ps.Workload.Claims))
	for i := range ps.Workload.Claims {
		of[i] = ps.claimChanges(i)
		if first := ps.equalBefore(i); first < i { // of the same template: a change of that changes both
			for n, c := range of[first] {
				apply, other := c.apply, of[i][n].apply
				c.apply = func(w *schedule.Workload, level int) {
					apply(w, level)
					other(w, level)
				}
			}
			continue
		}
		ofClaims = append(ofClaims, of[i]...)
	}
	ofClaims = append(ofClaims, ps.podChanges()...)
	slices.SortStableFunc(ofClaims, func(a, b *Proposal) int { return a.rank() - b.rank() })
	return ofClaims, ps.waits()
}

// equalBefore returns the first claim that is equal and of the same object, or the claim itself.
func (ps *proposals) equalBefore(claim int) int {
	for i := range claim {
		if ps.Workload.Origins[i].Object == ps.Workload.Origins[claim].Object &&
			equality.Semantic.DeepEqual(ps.Workload.Claims[i].Spec, ps.Workload.Claims[claim].Spec) {
			return i
		}
	}
	return claim
}

// ofRequests return the changes of a request or alternative, other than the corrections of mistakes, which replace
// those of the same clause.
var ofRequests = []func(ps *proposals, claim, number int, candidates []schedule.Candidate) []*Proposal{
	(*proposals).clauseChanges,
	(*proposals).capacityChanges,
	(*proposals).countChanges,
	(*proposals).tolerations,
	(*proposals).classChanges,
}

// claimChanges returns the changes of a claim.
func (ps *proposals) claimChanges(claim int) []*Proposal {
	if ps.Workload.Origins[claim].Extended != nil {
		return ps.extendedChanges(claim)
	}
	var all []*Proposal
	for i := range cluster.Subrequests(&ps.Workload.Claims[claim].Spec) {
		candidates := ps.Candidates[schedule.RequestID{Claim: claim, Number: i}]
		corrections := ps.corrections(claim, i, candidates)
		all = append(all, corrections...)
		for _, changes := range ofRequests {
			all = append(all, slices.DeleteFunc(changes(ps, claim, i, candidates), func(c *Proposal) bool {
				return slices.ContainsFunc(corrections, func(right *Proposal) bool { return right.Target == c.Target })
			})...)
		}
	}
	return append(all, ps.constraintChanges(claim)...)
}

// extendedChanges lowers what each container requests of the extended resources of classes. A pod can say no more about
// their devices.
func (ps *proposals) extendedChanges(claim int) []*Proposal {
	var all []*Proposal
	for i, c := range slices.Concat(ps.Workload.Pod.Spec.InitContainers, ps.Workload.Pod.Spec.Containers) {
		for j, name := range slices.Sorted(maps.Keys(c.Resources.Requests)) {
			now := c.Resources.Requests[name]
			if ps.ClassOf(name) == nil || now.Value() < 2 {
				continue
			}
			all = append(all, lowerCount(ps.Workload.Origins[claim].Object, fit.ExtendedRequest(i, j),
				target{field: "container", request: schedule.RequestID{Claim: claim, Number: i}, number: j},
				fmt.Sprintf("instead of %d", now.Value()), now.Value()-1,
				func(w *schedule.Workload, count int64) {
					containers := slices.Concat(w.Pod.Spec.InitContainers, w.Pod.Spec.Containers)
					containers[i].Resources.Requests[name] = *schedule.NewQuantity(count)
					w.Origins = slices.Clone(w.Origins)
					w.Claims[claim].Spec.Devices.Requests, w.Origins[claim].Extended = ps.ExtendedOf(w.Pod)
				}))
		}
	}
	return all
}

func (ps *proposals) clauseChanges(claim, number int, candidates []schedule.Candidate) []*Proposal {
	p := cluster.Subrequests(&ps.Workload.Claims[claim].Spec)[number]
	var all []*Proposal
	for k := range *p.Selectors {
		ref := schedule.SelectorRef{RequestID: schedule.RequestID{Claim: claim, Number: number}, Selector: k}
		for n, c := range ps.Workload.Clauses[ref] {
			at := func(kind ChangeKind, levels int, text func(int) string, clause func(int) string) {
				all = append(all, &Proposal{Kind: kind, in: ps.Workload.Origins[claim].Object, request: p.Name,
					Target: clauseOf(ref, n), Levels: levels, Text: text,
					apply: func(w *schedule.Workload, level int) { w.SetClause(ref, n, clause(level)) }})
				if p.All() && levels > 1 {
					all[len(all)-1].try = UpTo(levels)
				}
			}
			if c.Text == "true" || c.Text == "false" && p.Alternative >= 0 {
				continue
			}
			if slices.ContainsFunc(candidates, func(f schedule.Candidate) bool {
				return slices.Contains(f.Errors, schedule.ClauseRef{Selector: k, Clause: n})
			}) && len(c.Paths) > 0 {
				at(Guard, 1, one("test that the device has the attribute first: "+c.Guard()), one(c.Guard()))
			}
			if values := beyond(c.Limit, candidates); len(values) > 0 {
				at(RelaxClause, len(values), func(level int) string {
					return fmt.Sprintf("write %s instead of %s", c.Limit.With(values[level]), c.Text)
				}, func(level int) string { return c.Limit.With(values[level]) })
			}
			at(DropClause, 1, one("remove "+c.Text), one(""))
		}
	}
	return all
}

// beyond returns the values that devices of the class have beyond the limit, those next to it first.
func beyond(l *selectors.Limit, candidates []schedule.Candidate) []selectors.Number {
	if l == nil {
		return nil
	}
	var all []selectors.Number
	for _, f := range candidates {
		if !f.InClass() {
			continue
		}
		if n, ok := l.Of(f.Slice.Spec.Driver, f.Device); ok && !l.Meets(n) {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b selectors.Number) int {
		if l.AtLeast {
			a, b = b, a
		}
		return a.Compare(b)
	})
	return slices.CompactFunc(all, func(a, b selectors.Number) bool { return a.Compare(b) == 0 })
}

// quantities are what a request asks of each capacity.
type quantities = map[resourceapi.QualifiedName]resource.Quantity

// capacityChanges lowers what the request asks of a capacity, down to what devices give at least, or removes it.
func (ps *proposals) capacityChanges(claim, number int, candidates []schedule.Candidate) []*Proposal {
	p := cluster.Subrequests(&ps.Workload.Claims[claim].Spec)[number]
	names := map[resourceapi.QualifiedName]bool{}
	for _, f := range candidates {
		if f.Device.AllowMultipleAllocations == nil || !*f.Device.AllowMultipleAllocations || !f.InClass() {
			continue
		}
		for name, c := range f.Device.Capacity {
			names[name] = names[name] || c.RequestPolicy != nil
		}
	}
	if *p.Capacity != nil {
		for name := range (*p.Capacity).Requests {
			names[name] = true
		}
	}
	var all []*Proposal
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !names[name] {
			continue
		}
		of := target{field: "capacity", request: schedule.RequestID{Claim: claim, Number: number}, name: string(name)}
		change := func(kind ChangeKind, levels int, text func(int) string, set func(all quantities, level int)) {
			all = append(all, &Proposal{Kind: kind, in: ps.Workload.Origins[claim].Object, request: p.Name, Target: of,
				Levels: levels, Text: text, apply: func(w *schedule.Workload, level int) {
					part := cluster.Subrequests(&w.Claims[claim].Spec)[number]
					if *part.Capacity == nil {
						*part.Capacity = &resourceapi.CapacityRequirements{}
					}
					if (*part.Capacity).Requests == nil {
						(*part.Capacity).Requests = quantities{}
					}
					set((*part.Capacity).Requests, level)
				}})
		}
		now := schedule.QuantityOf(p, name)
		instead := "instead of all of it"
		if now != nil {
			instead = "instead of " + now.String()
			change(DropCapacity, 1, one(fmt.Sprintf("remove capacity.requests.%s", name)),
				func(all quantities, _ int) { delete(all, name) })
		}
		if levels, amount := amounts(name, now, candidates); levels > 0 && (now != nil || !p.All()) {
			change(LowerCapacity, levels, func(level int) string {
				a := amount(level)
				return fmt.Sprintf("ask for %s %s %s (capacity.requests.%s)", a.String(), name, instead, name)
			}, func(all quantities, level int) { all[name] = amount(level) })
			if p.All() {
				all[len(all)-1].try = levelsAt(name, levels, amount, candidates)
			}
		}
	}
	return all
}

// amounts returns the amounts below what is requested, in the steps of the devices, the largest first. nil: nothing is
// requested, which means all of a device.
func amounts(name resourceapi.QualifiedName, now *resource.Quantity, candidates []schedule.Candidate) (int,
	func(int) resource.Quantity) {
	var least, step, most int64
	var format resource.Format
	found := false
	for _, f := range candidates {
		c, ok := f.Device.Capacity[name]
		if !ok || !f.InClass() {
			continue
		}
		low, by := int64(1), int64(1)
		if c.RequestPolicy != nil && c.RequestPolicy.ValidRange != nil {
			if r := c.RequestPolicy.ValidRange; r.Min != nil {
				low = r.Min.Value()
				if r.Step != nil {
					by = max(1, r.Step.Value())
				}
			}
		}
		if !found {
			least, step = low, by
		}
		if c.Value.Value() > most {
			format = c.Value.Format
		}
		least, step, most, found = min(least, low), min(step, by), max(most, c.Value.Value()), true
	}
	if now != nil {
		most, format = now.Value(), now.Format
	}
	if !found || most <= least {
		return 0, nil
	}
	levels := (most-1-least)/step + 1 // the amounts are least + n*step, below most
	const maxLevels = 1 << 40
	if levels > maxLevels {
		return 0, nil
	}
	return int(levels), func(level int) resource.Quantity {
		return *resource.NewQuantity(least+(levels-1-int64(level))*step, format)
	}
}

// levelsAt returns the levels at which devices begin to have the amount: in all, and beside other claims.
func levelsAt(name resourceapi.QualifiedName, levels int, amount func(int) resource.Quantity,
	candidates []schedule.Candidate) []int {
	var all []int
	for _, f := range candidates {
		c, ok := f.Device.Capacity[name]
		if !ok {
			continue
		}
		left := c.Value.DeepCopy()
		if used := f.Group.Held.Capacity(allocator.NameOf(f.Slice.Spec.Driver, f.Slice.Spec.Pool.Name, f.Device.Name),
			name); used != nil {
			left.Sub(*used)
		}
		for _, value := range []resource.Quantity{c.Value, left} {
			if level := sort.Search(levels, func(level int) bool {
				a := amount(level)
				return a.Cmp(value) <= 0
			}); level < levels {
				all = append(all, level)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(append(all, levels-1))
}

// UpTo returns the numbers below n.
func UpTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func (ps *proposals) countChanges(claim, number int, candidates []schedule.Candidate) []*Proposal {
	p := cluster.Subrequests(&ps.Workload.Claims[claim].Spec)[number]
	most, instead := *p.Count-1, fmt.Sprintf("instead of %d", *p.Count)
	if p.All() {
		onNode := map[*schedule.Group]int64{}
		for _, f := range candidates {
			if f.InClass() {
				onNode[f.Group]++
				most = max(most, onNode[f.Group])
			}
		}
		instead = "instead of all (allocationMode: ExactCount)"
	}
	most = min(most, resourceapi.AllocationResultsMaxSize)
	if most < 1 {
		return nil
	}
	of := target{field: "count", request: schedule.RequestID{Claim: claim, Number: number}}
	return []*Proposal{lowerCount(ps.Workload.Origins[claim].Object, p.Name, of, instead, most,
		func(w *schedule.Workload, count int64) {
			p := cluster.Subrequests(&w.Claims[claim].Spec)[number]
			*p.Mode, *p.Count = resourceapi.DeviceAllocationModeExactCount, count
		})}
}

// lowerCount returns a change to at most that many devices.
func lowerCount(in, request string, of target, instead string, most int64,
	set func(w *schedule.Workload, count int64)) *Proposal {
	return &Proposal{Kind: LowerCount, in: in, request: request, Target: of, Levels: int(most),
		Text: func(level int) string {
			n := int(most) - level
			return fmt.Sprintf("ask for %d %s %s", n, schedule.Plural(n, "device", "devices"), instead)
		},
		apply: func(w *schedule.Workload, level int) { set(w, most-int64(level)) }}
}

func (ps *proposals) tolerations(claim, number int, candidates []schedule.Candidate) []*Proposal {
	name := cluster.Subrequests(&ps.Workload.Claims[claim].Spec)[number].Name
	found := map[string]resourceapi.DeviceTaint{}
	for _, f := range candidates {
		if f.InClass() {
			for _, t := range f.Taints {
				// One of the driver: the device does not work, or is kept for others. Its keys do not have its name.
				of, _, _ := strings.Cut(t.Key, "/")
				if of != f.Slice.Spec.Driver && !strings.HasSuffix(of, "gpu.nvidia.com") {
					found[cluster.TaintText(t)] = t
				}
			}
		}
	}
	var all []*Proposal
	for _, text := range slices.Sorted(maps.Keys(found)) {
		with := resourceapi.DeviceToleration{Key: found[text].Key, Operator: resourceapi.DeviceTolerationOpEqual,
			Value: found[text].Value, Effect: found[text].Effect}
		all = append(all, &Proposal{Kind: Tolerate, in: ps.Workload.Origins[claim].Object, request: name,
			Target: target{field: "taint", request: schedule.RequestID{Claim: claim, Number: number}, name: text},
			Levels: 1,
			Text:   one("tolerate the taint " + text + " of the device, if who set it agrees"),
			apply: func(w *schedule.Workload, _ int) {
				p := cluster.Subrequests(&w.Claims[claim].Spec)[number]
				*p.Tolerations = append(*p.Tolerations, with)
			}})
	}
	return all
}

// classChanges offers other classes for one that does not exist, or that has no device.
func (ps *proposals) classChanges(claim, number int, candidates []schedule.Candidate) []*Proposal {
	p := cluster.Subrequests(&ps.Workload.Claims[claim].Spec)[number]
	if ps.ClassByName[*p.Class] != nil && slices.ContainsFunc(candidates, schedule.Candidate.InClass) {
		return nil
	}
	var all []*Proposal
	for _, name := range ps.otherClasses(*p.Class) {
		all = append(all, &Proposal{Kind: UseClass, in: ps.Workload.Origins[claim].Object, request: p.Name,
			Target: target{field: "class", request: schedule.RequestID{Claim: claim, Number: number}}, Levels: 1,
			Text: one("use the class " + name),
			apply: func(w *schedule.Workload, _ int) {
				*cluster.Subrequests(&w.Claims[claim].Spec)[number].Class = name
			}})
	}
	return all
}

// ConstraintText names a constraint.
func ConstraintText(c resourceapi.DeviceConstraint) string {
	text := ""
	switch {
	case c.MatchAttribute != nil:
		text = "matchAttribute: " + string(*c.MatchAttribute)
	case c.DistinctAttribute != nil:
		text = "distinctAttribute: " + string(*c.DistinctAttribute)
	}
	if len(c.Requests) > 0 {
		text += " of " + strings.Join(c.Requests, ", ")
	}
	return text
}

func (ps *proposals) constraintChanges(claim int) []*Proposal {
	var all []*Proposal
	for n, c := range ps.Workload.Claims[claim].Spec.Devices.Constraints {
		all = append(all, &Proposal{Kind: DropConstraint, in: ps.Workload.Origins[claim].Object,
			Target: target{field: "constraint", request: schedule.RequestID{Claim: claim}, number: n}, Levels: 1,
			Text: one("remove the constraint " + ConstraintText(c)),
			apply: func(w *schedule.Workload, _ int) {
				// Changes of one workload may be applied in any order: the constraint is found by its content.
				constraints := &w.Claims[claim].Spec.Devices.Constraints
				if at := slices.IndexFunc(*constraints, func(other resourceapi.DeviceConstraint) bool {
					return ConstraintText(other) == ConstraintText(c)
				}); at >= 0 {
					*constraints = slices.Delete(*constraints, at, at+1)
				}
			}})
	}
	return all
}

func (ps *proposals) podChanges() []*Proposal {
	pod := ps.Workload.Pod
	if pod == nil {
		return nil
	}
	var all []*Proposal
	in := "Pod " + pod.Namespace + "/" + pod.Name
	add := func(field, name string, levels int, text func(int) string, apply func(*corev1.Pod, int)) {
		all = append(all, &Proposal{Kind: ChangePod, in: in, Target: target{field: field, name: name}, Levels: levels,
			Text:  text,
			apply: func(w *schedule.Workload, level int) { apply(w.Pod, level) }})
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		add("nodeSelector", key, 1, one(fmt.Sprintf("remove the node selector %s=%s", key, pod.Spec.NodeSelector[key])),
			func(p *corev1.Pod, _ int) { delete(p.Spec.NodeSelector, key) })
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		add("affinity", "", 1, one("remove the required node affinity"), func(p *corev1.Pod, _ int) {
			p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
		})
	}
	taints, scarce := map[string]corev1.Taint{}, map[corev1.ResourceName][]resource.Quantity{}
	for _, s := range ps.Groups {
		for _, t := range schedule.TaintsOf(s.Node) {
			if !schedule.Tolerated(pod, t) && !schedule.OfCluster(t) {
				taints[t.ToString()] = t
			}
		}
		for _, name := range ps.Short(pod, s.Node) {
			if free := ps.Free(s.Node, name); !schedule.IsExtended(name) || !free.IsZero() {
				scarce[name] = append(scarce[name], free)
			}
		}
	}
	for _, text := range slices.Sorted(maps.Keys(taints)) {
		with := corev1.Toleration{Key: taints[text].Key, Operator: corev1.TolerationOpEqual, Value: taints[text].Value,
			Effect: taints[text].Effect}
		add("nodeTaint", text, 1, one("tolerate the taint "+text+" of the node"), func(p *corev1.Pod, _ int) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, with)
		})
	}
	for _, name := range slices.Sorted(maps.Keys(scarce)) {
		if name == corev1.ResourcePods {
			continue // each pod counts as one
		}
		if c := lowerResource(in, pod, name, scarce[name]); c.Levels > 0 {
			all = append(all, c)
		}
	}
	return all
}

// lowerResource lowers a resource that the pod requests to what nodes have left. The pod's requests become those of the
// pod itself, or of one container where a pod cannot have the resource, so that the sum is right. The overhead of the
// pod stays.
func lowerResource(in string, pod *corev1.Pod, name corev1.ResourceName, free []resource.Quantity) *Proposal {
	slices.SortFunc(free, func(a, b resource.Quantity) int { return b.Cmp(a) })
	free = slices.CompactFunc(free, func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
	now, of := schedule.RequestsOf(pod)[name], "for the pod"
	overhead := pod.Spec.Overhead[name]
	now.Sub(overhead)
	for i := range free {
		free[i].Sub(overhead)
	}
	free = slices.DeleteFunc(free, func(q resource.Quantity) bool { return q.Sign() < 0 })
	if !resourcehelper.IsSupportedPodLevelResource(name) {
		of = "for all containers together"
	}
	return &Proposal{Kind: ChangePod, in: in, Target: target{field: "resources", name: string(name)}, Levels: len(free),
		Text: func(level int) string {
			return fmt.Sprintf("request %s %s %s instead of %s", free[level].String(), name, of, now.String())
		},
		apply: func(w *schedule.Workload, level int) {
			for _, containers := range [][]corev1.Container{w.Pod.Spec.InitContainers, w.Pod.Spec.Containers} {
				for i := range containers {
					delete(containers[i].Resources.Requests, name)
				}
			}
			all := &w.Pod.Spec.Containers[0].Resources
			if resourcehelper.IsSupportedPodLevelResource(name) {
				if w.Pod.Spec.Resources == nil {
					w.Pod.Spec.Resources = &corev1.ResourceRequirements{}
				}
				all = w.Pod.Spec.Resources
			}
			if all.Requests == nil {
				all.Requests = corev1.ResourceList{}
			}
			all.Requests[name] = free[level]
		}}
}

// WaitUntil begins the text of a Wait.
const WaitUntil = "wait until "

// waits returns a change for each claim that holds devices of a group: that it has ended. Those that are being deleted
// come first, then those with few devices.
func (ps *proposals) waits() []*Proposal {
	var all []*Proposal
	size, leaves := map[*Proposal]int{}, map[*Proposal]bool{}
	seen := map[*resourceapi.ResourceClaim]*Proposal{}
	own := map[string]bool{}
	for _, claim := range ps.Workload.Allocated {
		own[string(claim.UID)] = true
	}
	for _, s := range ps.Groups {
		for _, claim := range s.Holders {
			if own[string(claim.UID)] {
				continue
			}
			if known := seen[claim]; known != nil {
				known.only = nil // it has devices of several groups
				continue
			}
			in, text := ps.waitText(claim)
			c := &Proposal{Kind: Wait, in: in, Target: target{field: "wait", name: string(claim.UID)}, Levels: 1,
				only: s, Text: one(text), apply: func(w *schedule.Workload, _ int) { w.Ended[claim.UID] = true }}
			seen[claim], size[c], leaves[c] = c, len(cluster.Results(claim)), claim.DeletionTimestamp != nil
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b *Proposal) int {
		if leaves[a] != leaves[b] {
			if leaves[a] {
				return -1
			}
			return 1
		}
		return size[a] - size[b]
	})
	return all
}

// waitText returns the claim to wait for, and the text of the wait.
func (ps *proposals) waitText(claim *resourceapi.ResourceClaim) (in, text string) {
	if ps.HideOthers && claim.Namespace != ps.Workload.Namespace() {
		return "a ResourceClaim of another namespace", WaitUntil + "a claim of another namespace has ended"
	}
	name := claim.Namespace + "/" + claim.Name
	text = WaitUntil + "claim " + name + " has ended"
	if since := cluster.Since(claim); since != nil {
		text += ", which has had its devices since " + since.UTC().Format(time.RFC3339)
	}
	return "ResourceClaim " + name, text
}
