// SPDX-License-Identifier: Apache-2.0

package why

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

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
)

// change is a possible change of a workload. It has levels from mild to loose: each admits what the one before admits,
// and more.
type change struct {
	kind    ChangeKind
	in      string
	request string
	target  target
	levels  int
	text    func(level int) string
	apply   func(w *workload, level int)
	only    *nodeGroup // the only nodes where the change helps by itself; nil: any
	// try are the levels to try one by one, if a looser level may admit less: a request for all devices gets none if it
	// matches one that it cannot have. nil: the looser the better.
	try []int
}

// target is what a change changes. Changes of one target replace each other, as another limit and no limit in one
// clause.
type target struct {
	field   string // of a request, claim or pod, or "wait"
	request requestID
	// number is that of a selector and its clause, of a constraint, or of a container and its resource.
	number, clause int
	name           string // of a capacity, taint, label or resource, or the UID of a claim
}

// rank orders the kinds of changes: the first are preferred.
func (c *change) rank() int { return slices.Index(kinds, c.kind) }

var kinds = []ChangeKind{Correct, Guard, RelaxClause, LowerCapacity, LowerCount, Wait, DropConstraint,
	DropCapacity, DropClause,
	Tolerate, UseClass, ChangePod}

// proposals lists the changes of a workload that the package knows.
type proposals struct {
	*question
	candidates map[requestID][]candidate
}

func one(text string) func(int) string { return func(int) string { return text } }

// changes returns all changes, in the order of their rank, and the claims to wait for on each group of nodes.
func (ps *proposals) changes() (ofClaims []*change, waits []*change) {
	of := make([][]*change, len(ps.w.claims))
	for i := range ps.w.claims {
		of[i] = ps.claimChanges(i)
		if first := ps.equalBefore(i); first < i { // of the same template: a change of that changes both
			for n, c := range of[first] {
				apply, other := c.apply, of[i][n].apply
				c.apply = func(w *workload, level int) {
					apply(w, level)
					other(w, level)
				}
			}
			continue
		}
		ofClaims = append(ofClaims, of[i]...)
	}
	ofClaims = append(ofClaims, ps.podChanges()...)
	slices.SortStableFunc(ofClaims, func(a, b *change) int { return a.rank() - b.rank() })
	return ofClaims, ps.waits()
}

// equalBefore returns the first claim that is equal and of the same object, or the claim itself.
func (ps *proposals) equalBefore(claim int) int {
	for i := range claim {
		if ps.w.origins[i].object == ps.w.origins[claim].object &&
			equality.Semantic.DeepEqual(ps.w.claims[i].Spec, ps.w.claims[claim].Spec) {
			return i
		}
	}
	return claim
}

// claimChanges returns the changes of a claim.
func (ps *proposals) claimChanges(claim int) []*change {
	if ps.w.origins[claim].extended != nil {
		return ps.extendedChanges(claim)
	}
	var all []*change
	for i := range cluster.Subrequests(&ps.w.claims[claim].Spec) {
		of := ps.candidates[requestID{claim, i}]
		corrections := ps.corrections(claim, i, of)
		all = slices.Concat(all, corrections, slices.DeleteFunc(ps.clauseChanges(claim, i, of), func(c *change) bool {
			return slices.ContainsFunc(corrections, func(right *change) bool { return right.target == c.target })
		}),
			ps.capacityChanges(claim, i, of), ps.countChanges(claim, i, of), ps.tolerations(claim, i, of),
			ps.classChanges(claim, i, of))
	}
	return append(all, ps.constraintChanges(claim)...)
}

// extendedChanges lowers what each container requests of the extended resources of classes. A pod can say no more about
// their devices.
func (ps *proposals) extendedChanges(claim int) []*change {
	var all []*change
	for i, c := range slices.Concat(ps.w.pod.Spec.InitContainers, ps.w.pod.Spec.Containers) {
		for j, name := range slices.Sorted(maps.Keys(c.Resources.Requests)) {
			now := c.Resources.Requests[name]
			if ps.ofClass(name) == nil || now.Value() < 2 {
				continue
			}
			all = append(all, lowerCount(ps.w.origins[claim].object, fit.ExtendedRequest(i, j),
				target{field: "container", request: requestID{claim, i}, number: j}, fmt.Sprintf("instead of %d",
					now.Value()), now.Value()-1,
				func(w *workload, count int64) {
					containers := slices.Concat(w.pod.Spec.InitContainers, w.pod.Spec.Containers)
					containers[i].Resources.Requests[name] = *newQuantity(count)
					w.origins = slices.Clone(w.origins)
					w.claims[claim].Spec.Devices.Requests, w.origins[claim].extended = ps.extendedOf(w.pod)
				}))
		}
	}
	return all
}

func (ps *proposals) clauseChanges(claim, number int, candidates []candidate) []*change {
	p := cluster.Subrequests(&ps.w.claims[claim].Spec)[number]
	var all []*change
	for k := range *p.Selectors {
		ref := selectorRef{requestID{claim, number}, k}
		for n, c := range ps.w.clauses[ref] {
			at := func(kind ChangeKind, levels int, text func(int) string, clause func(int) string) {
				all = append(all, &change{kind: kind, in: ps.w.origins[claim].object, request: p.Name,
					target: ref.clause(n), levels: levels, text: text,
					apply: func(w *workload, level int) { w.setClause(ref, n, clause(level)) }})
				if p.All() && levels > 1 {
					all[len(all)-1].try = upTo(levels)
				}
			}
			if c.Text == "true" || c.Text == never && p.Alternative >= 0 {
				continue
			}
			if slices.ContainsFunc(candidates, func(f candidate) bool {
				return slices.Contains(f.errors, clauseRef{k, n})
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
func beyond(l *selectors.Limit, candidates []candidate) []selectors.Number {
	if l == nil {
		return nil
	}
	var all []selectors.Number
	for _, f := range candidates {
		if !f.ofClass() {
			continue
		}
		if n, ok := l.Of(f.slice.Spec.Driver, f.device); ok && !l.Meets(n) {
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
func (ps *proposals) capacityChanges(claim, number int, candidates []candidate) []*change {
	p := cluster.Subrequests(&ps.w.claims[claim].Spec)[number]
	names := map[resourceapi.QualifiedName]bool{}
	for _, f := range candidates {
		if f.device.AllowMultipleAllocations == nil || !*f.device.AllowMultipleAllocations || !f.ofClass() {
			continue
		}
		for name, c := range f.device.Capacity {
			names[name] = names[name] || c.RequestPolicy != nil
		}
	}
	if *p.Capacity != nil {
		for name := range (*p.Capacity).Requests {
			names[name] = true
		}
	}
	var all []*change
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !names[name] {
			continue
		}
		of := target{field: "capacity", request: requestID{claim, number}, name: string(name)}
		change := func(kind ChangeKind, levels int, text func(int) string, set func(all quantities, level int)) {
			all = append(all, &change{kind: kind, in: ps.w.origins[claim].object, request: p.Name, target: of,
				levels: levels, text: text, apply: func(w *workload, level int) {
					part := cluster.Subrequests(&w.claims[claim].Spec)[number]
					if *part.Capacity == nil {
						*part.Capacity = &resourceapi.CapacityRequirements{}
					}
					if (*part.Capacity).Requests == nil {
						(*part.Capacity).Requests = quantities{}
					}
					set((*part.Capacity).Requests, level)
				}})
		}
		now := quantityOf(p, name)
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
func amounts(name resourceapi.QualifiedName, now *resource.Quantity, candidates []candidate) (int,
	func(int) resource.Quantity) {
	var least, step, most int64
	var format resource.Format
	found := false
	for _, f := range candidates {
		c, ok := f.device.Capacity[name]
		if !ok || !f.ofClass() {
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
	candidates []candidate) []int {
	var all []int
	for _, f := range candidates {
		c, ok := f.device.Capacity[name]
		if !ok {
			continue
		}
		left := c.Value.DeepCopy()
		if used := f.group.held.Capacity(fit.NameOf(f.slice.Spec.Driver, f.slice.Spec.Pool.Name, f.device.Name),
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

// upTo returns the numbers below n.
func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func (ps *proposals) countChanges(claim, number int, candidates []candidate) []*change {
	p := cluster.Subrequests(&ps.w.claims[claim].Spec)[number]
	most, instead := *p.Count-1, fmt.Sprintf("instead of %d", *p.Count)
	if p.All() {
		onNode := map[*nodeGroup]int64{}
		for _, f := range candidates {
			if f.ofClass() {
				onNode[f.group]++
				most = max(most, onNode[f.group])
			}
		}
		instead = "instead of all (allocationMode: ExactCount)"
	}
	most = min(most, resourceapi.AllocationResultsMaxSize)
	if most < 1 {
		return nil
	}
	return []*change{lowerCount(ps.w.origins[claim].object, p.Name, target{field: "count", request: requestID{claim,
		number}}, instead,
		most, func(w *workload, count int64) {
			p := cluster.Subrequests(&w.claims[claim].Spec)[number]
			*p.Mode, *p.Count = resourceapi.DeviceAllocationModeExactCount, count
		})}
}

// lowerCount returns a change to at most that many devices.
func lowerCount(in, request string, of target, instead string, most int64, set func(w *workload, count int64)) *change {
	return &change{kind: LowerCount, in: in, request: request, target: of, levels: int(most),
		text: func(level int) string {
			n := int(most) - level
			return fmt.Sprintf("ask for %d %s %s", n, plural(n, "device", "devices"), instead)
		},
		apply: func(w *workload, level int) { set(w, most-int64(level)) }}
}

func (ps *proposals) tolerations(claim, number int, candidates []candidate) []*change {
	name := cluster.Subrequests(&ps.w.claims[claim].Spec)[number].Name
	found := map[string]resourceapi.DeviceTaint{}
	for _, f := range candidates {
		if f.ofClass() {
			for _, t := range f.taints {
				// One of the driver: the device does not work, or is kept for others. Its keys do not have its name.
				of, _, _ := strings.Cut(t.Key, "/")
				if of != f.slice.Spec.Driver && !strings.HasSuffix(of, "gpu.nvidia.com") {
					found[cluster.TaintText(t)] = t
				}
			}
		}
	}
	var all []*change
	for _, text := range slices.Sorted(maps.Keys(found)) {
		with := resourceapi.DeviceToleration{Key: found[text].Key, Operator: resourceapi.DeviceTolerationOpEqual,
			Value: found[text].Value, Effect: found[text].Effect}
		all = append(all, &change{kind: Tolerate, in: ps.w.origins[claim].object, request: name,
			target: target{field: "taint", request: requestID{claim, number}, name: text}, levels: 1,
			text: one("tolerate the taint " + text + " of the device, if who set it agrees"),
			apply: func(w *workload, _ int) {
				p := cluster.Subrequests(&w.claims[claim].Spec)[number]
				*p.Tolerations = append(*p.Tolerations, with)
			}})
	}
	return all
}

// classChanges offers other classes for one that does not exist, or that has no device.
func (ps *proposals) classChanges(claim, number int, candidates []candidate) []*change {
	p := cluster.Subrequests(&ps.w.claims[claim].Spec)[number]
	if ps.classes[*p.Class] != nil && slices.ContainsFunc(candidates, candidate.ofClass) {
		return nil
	}
	var all []*change
	for _, name := range ps.otherClasses(*p.Class) {
		all = append(all, &change{kind: UseClass, in: ps.w.origins[claim].object, request: p.Name,
			target: target{field: "class", request: requestID{claim, number}}, levels: 1,
			text:  one("use the class " + name),
			apply: func(w *workload, _ int) { *cluster.Subrequests(&w.claims[claim].Spec)[number].Class = name }})
	}
	return all
}

// constraintText names a constraint.
func constraintText(c resourceapi.DeviceConstraint) string {
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

func (ps *proposals) constraintChanges(claim int) []*change {
	var all []*change
	for n, c := range ps.w.claims[claim].Spec.Devices.Constraints {
		all = append(all, &change{kind: DropConstraint, in: ps.w.origins[claim].object,
			target: target{field: "constraint", request: requestID{claim: claim}, number: n}, levels: 1,
			text: one("remove the constraint " + constraintText(c)),
			apply: func(w *workload, _ int) {
				// Changes of one workload may be applied in any order: the constraint is found by its content.
				constraints := &w.claims[claim].Spec.Devices.Constraints
				if at := slices.IndexFunc(*constraints, func(other resourceapi.DeviceConstraint) bool {
					return constraintText(other) == constraintText(c)
				}); at >= 0 {
					*constraints = slices.Delete(*constraints, at, at+1)
				}
			}})
	}
	return all
}

func (ps *proposals) podChanges() []*change {
	pod := ps.w.pod
	if pod == nil {
		return nil
	}
	var all []*change
	in := "Pod " + pod.Namespace + "/" + pod.Name
	add := func(field, name string, levels int, text func(int) string, apply func(*corev1.Pod, int)) {
		all = append(all, &change{kind: ChangePod, in: in, target: target{field: field, name: name}, levels: levels,
			text:  text,
			apply: func(w *workload, level int) { apply(w.pod, level) }})
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
	for _, s := range ps.groups {
		for _, t := range taintsOf(s.node) {
			if !tolerated(pod, t) && !ofCluster(t) {
				taints[t.ToString()] = t
			}
		}
		for _, name := range ps.short(pod, s.node) {
			if free := ps.free(s.node, name); !isExtended(name) || !free.IsZero() {
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
		if c := lowerResource(in, pod, name, scarce[name]); c.levels > 0 {
			all = append(all, c)
		}
	}
	return all
}

// lowerResource lowers a resource that the pod requests to what nodes have left. The pod's requests become those of the
// pod itself, or of one container where a pod cannot have the resource, so that the sum is right. The overhead of the
// pod stays.
func lowerResource(in string, pod *corev1.Pod, name corev1.ResourceName, free []resource.Quantity) *change {
	slices.SortFunc(free, func(a, b resource.Quantity) int { return b.Cmp(a) })
	free = slices.CompactFunc(free, func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
	now, of := requestsOf(pod)[name], "for the pod"
	overhead := pod.Spec.Overhead[name]
	now.Sub(overhead)
	for i := range free {
		free[i].Sub(overhead)
	}
	free = slices.DeleteFunc(free, func(q resource.Quantity) bool { return q.Sign() < 0 })
	if !resourcehelper.IsSupportedPodLevelResource(name) {
		of = "for all containers together"
	}
	return &change{kind: ChangePod, in: in, target: target{field: "resources", name: string(name)}, levels: len(free),
		text: func(level int) string {
			return fmt.Sprintf("request %s %s %s instead of %s", free[level].String(), name, of, now.String())
		},
		apply: func(w *workload, level int) {
			for _, containers := range [][]corev1.Container{w.pod.Spec.InitContainers, w.pod.Spec.Containers} {
				for i := range containers {
					delete(containers[i].Resources.Requests, name)
				}
			}
			all := &w.pod.Spec.Containers[0].Resources
			if resourcehelper.IsSupportedPodLevelResource(name) {
				if w.pod.Spec.Resources == nil {
					w.pod.Spec.Resources = &corev1.ResourceRequirements{}
				}
				all = w.pod.Spec.Resources
			}
			if all.Requests == nil {
				all.Requests = corev1.ResourceList{}
			}
			all.Requests[name] = free[level]
		}}
}

// waitUntil begins the text of a Wait.
const waitUntil = "wait until "

// waits returns a change for each claim that holds devices of a group: that it has ended. Those that are being deleted
// come first, then those with few devices.
func (ps *proposals) waits() []*change {
	var all []*change
	size, leaves := map[*change]int{}, map[*change]bool{}
	seen := map[*resourceapi.ResourceClaim]*change{}
	own := map[string]bool{}
	for _, claim := range ps.w.allocated {
		own[string(claim.UID)] = true
	}
	for _, s := range ps.groups {
		for _, claim := range s.holders {
			if own[string(claim.UID)] {
				continue
			}
			if known := seen[claim]; known != nil {
				known.only = nil // it has devices of several groups
				continue
			}
			in, text := ps.waitText(claim)
			c := &change{kind: Wait, in: in, target: target{field: "wait", name: string(claim.UID)}, levels: 1,
				only: s, text: one(text), apply: func(w *workload, _ int) { w.ended[claim.UID] = true }}
			seen[claim], size[c], leaves[c] = c, len(cluster.Results(claim)), claim.DeletionTimestamp != nil
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b *change) int {
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

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// waitText returns the claim to wait for, and the text of the wait.
func (ps *proposals) waitText(claim *resourceapi.ResourceClaim) (in, text string) {
	if ps.HideOthers && claim.Namespace != ps.w.namespace() {
		return "a ResourceClaim of another namespace", waitUntil + "a claim of another namespace has ended"
	}
	name := claim.Namespace + "/" + claim.Name
	text = waitUntil + "claim " + name + " has ended"
	if since := cluster.Since(claim); since != nil {
		text += ", which has had its devices since " + since.UTC().Format(time.RFC3339)
	}
	return "ResourceClaim " + name, text
}
