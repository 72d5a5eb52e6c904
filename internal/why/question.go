// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

const (
	// explainTimeout ends an explanation, unless the options say otherwise.
	explainTimeout = time.Minute
	// searchTimeout ends the search for changes.
	searchTimeout = 20 * time.Second
)

// maxCandidates is how many devices are compared with all subrequests of a workload. They are kept in memory. Tests
// change it.
var maxCandidates = 500_000

// Tests change these.
var (
	// askTimeout ends a single question: the allocator's search can be exponential. It is that of the scheduler.
	askTimeout = 10 * time.Second
	// changeTimeout ends a single question of the search for changes. The answer then counts as no.
	changeTimeout = time.Second
)

// searchAsked is how many questions to the allocator a search for changes asks. Tests change it.
var searchAsked = 20_000

// errLimit means that the search has reached its limit.
var errLimit = errors.New("the search has reached its limit")

// question asks the allocator about a workload and changes of it.
type question struct {
	*index
	ctx    context.Context
	w      *workload
	groups []*nodeGroup
	asked  int
	until  time.Time // all questions end then. Zero: each has the time that the scheduler gives it
	// The search for changes ends after so many questions, or then.
	maxAsked int
	deadline time.Time
	slow     int // questions of that search that took too long
	// A workload that would get devices and not start, because the node refuses them, does not fit then.
	starts   bool
	refused  *sharing.Refusal // the first such refusal
	refusals int              // how many there were

	texts map[string]string // of errors, which many devices have
}

func newQuestion(ctx context.Context, c *index, w *workload) *question {
	return &question{index: c, ctx: ctx, w: w, groups: c.nodeGroups(ctx, w), texts: map[string]string{}}
}

// once returns an equal text that is kept once.
func (q *question) once(text string) string {
	if known, ok := q.texts[text]; ok {
		return known
	}
	q.texts[text] = text
	return text
}

// placement is where a workload fits, and the devices that it gets there.
type placement struct {
	group   *nodeGroup
	results []resourceapi.AllocationResult
}

// ask asks the allocator whether the node of the group can have the claims of the workload. No results and no error
// mean that it cannot.
func (q *question) ask(w *workload, s *nodeGroup) ([]resourceapi.AllocationResult, error) {
	if q.ctx.Err() != nil || q.maxAsked > 0 && (q.asked >= q.maxAsked || time.Now().After(q.deadline)) {
		return nil, errLimit
	}
	q.asked++
	held := s.held
	if len(w.ended) > 0 {
		held = fit.HeldBy(s.holders, w.ended)
	}
	claims, timeout := w.claimsOn(s.node), askTimeout
	if q.tooMany(claims, s, held) {
		return nil, nil
	}
	switch {
	case q.maxAsked > 0:
		timeout = changeTimeout
	case !q.until.IsZero():
		timeout = min(timeout, time.Until(q.until))
	}
	ctx, cancel := context.WithTimeout(q.ctx, timeout)
	defer cancel()
	results, err := q.classes.Place(ctx, q.compiled, s.node, s.slices, held, claims...)
	switch {
	case err == nil:
		return results, nil
	case q.ctx.Err() != nil:
		return nil, errLimit
	case errors.Is(err, context.DeadlineExceeded) && q.maxAsked > 0:
		q.slow++
		return nil, nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, errLimit
	}
	return results, err
}

// fitsOn reports whether the pod and its claims fit on the group.
func (q *question) fitsOn(w *workload, s *nodeGroup) (placement, bool, error) {
	if q.ctx.Err() != nil {
		return placement{}, false, errLimit
	}
	if len(w.excludes(q.index, s.node)) > 0 || len(q.overQuota(w, s.node)) > 0 {
		return placement{}, false, nil
	}
	if len(w.claims) == 0 {
		return placement{group: s}, true, nil
	}
	results, err := q.ask(w, s)
	found, ok := placement{s, results}, len(results) == len(w.claims)
	if ok && err == nil && q.starts {
		if refusal := q.refusal(w.withClaims(), w, found); refusal != nil {
			q.refused, q.refusals = cmp.Or(q.refused, refusal), q.refusals+1
			return placement{}, false, nil
		}
	}
	return found, ok, err
}

// place returns the first of the groups that the workload fits on.
func (q *question) place(w *workload, groups []*nodeGroup) (*placement, error) {
	for i, s := range groups {
		found, ok, err := q.fitsOn(w, s)
		if err != nil {
			return nil, err
		}
		if ok {
			if i > 0 && len(groups) == len(q.groups) { // likely the next workload fits there, too
				q.groups = slices.Concat([]*nodeGroup{s}, groups[:i], groups[i+1:])
			}
			return &found, nil
		}
	}
	return nil, nil
}

// placements returns all groups that the workload fits on. Like the scheduler, it returns an error if the allocator has
// one on any node.
func (q *question) placements(w *workload) ([]placement, error) {
	var all []placement
	for _, s := range q.groups {
		found, ok, err := q.fitsOn(w, s)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, found)
		}
	}
	return all, nil
}

// overQuota returns the limits of the namespace's quotas that claims which do not exist yet would exceed on the node.
// The claim for extended resources depends on the node.
func (q *question) overQuota(w *workload, node *corev1.Node) []string {
	all := q.overGPUQuota(w, node)
	if len(q.Quotas) == 0 {
		return all
	}
	want := corev1.ResourceList{}
	for i, claim := range w.claimsOn(node) {
		of := w.origins[i]
		switch {
		case of.extended == nil && !of.exists:
			want = add(want, q.quotaOf(claim))
		case of.extended != nil && len(claim.Spec.Devices.Requests) > 0:
			more := q.quotaOf(claim)
			for _, name := range of.extended {
				if of.exists { // the quota has counted what the pod itself requests
					delete(more, corev1.DefaultResourceRequestsPrefix+name)
				}
			}
			want = add(want, more)
		}
	}
	for _, quota := range q.Quotas {
		if len(want) == 0 || quota.Namespace != w.namespace() || scoped(quota) {
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
func (c *index) scopedQuotas(w *workload) []string {
	var all []string
	for _, quota := range c.Quotas {
		if quota.Namespace == w.namespace() && scoped(quota) && slices.ContainsFunc(w.origins, func(o origin) bool {
			return !o.exists && slices.ContainsFunc(slices.Collect(maps.Values(o.extended)),
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
func (q *question) overGPUQuota(w *workload, node *corev1.Node) (all []string) {
	limits := func(quota *cluster.GPUQuota) bool { return quota.Namespace == w.namespace() && quota.Status.Enforced }
	first := slices.IndexFunc(q.GPUQuotas, limits)
	if first < 0 {
		return nil
	}
	view := q.view(q.GPUQuotas[first].Status.Driver)
	want, whole := cluster.Zero(), ""
	for i, claim := range w.claimsOn(node) {
		of := w.origins[i]
		if of.extended == nil && of.exists {
			continue
		}
		amount, err := view.AmountOf(q.ctx, claim)
		if err != nil {
			amount = nil
		}
		want.Add(amount, 1)
		whole = cmp.Or(whole, view.Whole(q.ctx, claim))
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
func (c *index) view(driver string) *cluster.View {
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
func (c *index) quotaOf(claim *resourceapi.ResourceClaim) corev1.ResourceList {
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
	all := corev1.ResourceList{"count/resourceclaims.resource.k8s.io": *newQuantity(1)}
	for k, n := range most {
		names := []string{k.class + corev1.ResourceClaimsPerClass,
			corev1.ResourceImplicitExtendedClaimsPerClass + k.class}
		if class := c.classes[k.class]; class != nil && class.Spec.ExtendedResourceName != nil {
			names = append(names, corev1.DefaultResourceRequestsPrefix+*class.Spec.ExtendedResourceName)
		}
		for _, name := range names {
			all = add(all, corev1.ResourceList{corev1.ResourceName(name): *newQuantity(n)})
		}
	}
	return all
}

// reason is why a request does not get a device.
type reason struct {
	kind   LossKind
	detail string
}

// candidate is a device that is compared with a subrequest, and the reasons why the subrequest does not get it.
type candidate struct {
	group   *nodeGroup
	slice   *resourceapi.ResourceSlice
	device  *resourceapi.Device
	reasons []reason                  // the first, and whether there are more: at most two
	other   bool                      // the class does not have the device
	failed  bool                      // an expression has an error
	errors  []clauseRef               // clauses that fail with an error
	taints  []resourceapi.DeviceTaint // not tolerated
}

// lose adds a reason.
func (f *candidate) lose(kind LossKind, detail string) {
	f.other, f.failed = f.other || kind == LostClass, f.failed || kind == LostError
	if len(f.reasons) < 2 {
		f.reasons = append(f.reasons, reason{kind, detail})
	}
}

// clauseRef names a clause of a subrequest.
type clauseRef struct{ selector, clause int }

// ofClass reports whether the class has the device.
func (f candidate) ofClass() bool { return !f.other }

// condition is a clause of a subrequest, compiled.
type condition struct {
	clauseRef
	text    string
	program cel.CompilationResult
}

// conditions compiles the clauses of a subrequest: for many devices, and perhaps more than the cache has.
func (q *question) conditions(claim, number int, p cluster.Subrequest) []condition {
	var all []condition
	for k := range *p.Selectors {
		for n, c := range q.w.clauses[selectorRef{requestID{claim, number}, k}] {
			if q.ctx.Err() != nil {
				return nil
			}
			all = append(all, condition{clauseRef{k, n}, c.Text, q.compiled.GetOrCompile(c.Text)})
		}
	}
	return all
}

// compare compares a subrequest of a claim with all devices of the groups. The error is errLimit.
func (q *question) compare(claim int, number int, groups []*nodeGroup, most int) ([]candidate, error) {
	p := cluster.Subrequests(&q.w.claims[claim].Spec)[number]
	class, conditions := q.classes[*p.Class], q.conditions(claim, number, p)
	var all []candidate
	resource := q.w.origins[claim].extended[p.Name]
	for _, s := range groups {
		if fromPlugin(s.node, resource) {
			continue // the node takes no devices for it
		}
		current, count := cluster.Current(s.slices), map[cluster.PoolID]int64{}
		for _, slice := range current {
			count[cluster.PoolOf(slice)]++
		}
		for _, slice := range current {
			incomplete := count[cluster.PoolOf(slice)] < slice.Spec.Pool.ResourceSliceCount
			for i := range slice.Spec.Devices {
				d := &slice.Spec.Devices[i]
				if !fit.Near(s.node, slice, d) {
					continue
				}
				if q.ctx.Err() != nil || len(all) == most {
					return nil, errLimit
				}
				f := candidate{group: s, slice: slice, device: d}
				if incomplete {
					f.lose(LostIncomplete, fmt.Sprintf("pool %s has %d of %d slices",
						slice.Spec.Pool.Name, count[cluster.PoolOf(slice)], slice.Spec.Pool.ResourceSliceCount))
				}
				q.examine(&f, p, class, conditions)
				all = append(all, f)
			}
		}
	}
	return all, nil
}

// examine fills in the reasons.
func (q *question) examine(f *candidate, p cluster.Subrequest, class *resourceapi.DeviceClass, conditions []condition) {
	for _, s := range class.Spec.Selectors {
		ok, err := meets(q.ctx, f.slice.Spec.Driver, f.device, q.compiled.GetOrCompile(expressionOf(s)))
		if err != nil {
			f.lose(LostError, q.once(fmt.Sprintf("class %s: %s: %v", class.Name, expressionOf(s), err)))
		} else if !ok {
			f.lose(LostClass, "not of class "+class.Name)
			return
		}
	}
	for _, c := range conditions {
		if q.ctx.Err() != nil {
			return
		}
		ok, err := meets(q.ctx, f.slice.Spec.Driver, f.device, c.program)
		switch {
		case err != nil:
			f.lose(LostError, q.once(fmt.Sprintf("%s: %v", c.text, err)))
			f.errors = append(f.errors, c.clauseRef)
		case !ok:
			f.lose(LostClause, c.text)
		}
	}
	f.taints = cluster.Untolerated(f.device.Taints, *p.Tolerations)
	for _, t := range f.taints {
		f.lose(LostTaint, q.taintDetail(t))
	}
	if len(f.reasons) > 0 {
		return
	}
	if !q.alone(f, p, nil) {
		f.lose(LostCapacity, "less capacity than requested: "+capacityText(p))
	} else if !p.Admin && len(f.group.holders) > 0 && !q.alone(f, p, f.group.holders) {
		f.lose(LostHeld, "held by other claims")
	}
}

// taintDetail returns the taint for people. The value of the one of a preemption is left out: whoever knows it can take
// the devices, which are kept for a pod of perhaps another namespace. So is that of a reservation where others read it.
func (c *index) taintDetail(t resourceapi.DeviceTaint) string {
	if t.Key == cluster.PreemptionTaint || t.Key == cluster.ReservedTaint && c.HideOthers {
		return t.Key
	}
	return cluster.TaintText(t)
}

// alone reports whether the subrequest gets the device, and only that, while the claims hold what they hold.
func (q *question) alone(f *candidate, p cluster.Subrequest, holders []*resourceapi.ResourceClaim) bool {
	q.asked++
	held := map[string]bool{}
	for _, claim := range holders {
		for _, r := range cluster.Results(claim) {
			if cluster.PoolOf(f.slice) == cluster.PoolOfResult(r) {
				held[r.Device] = true
			}
		}
	}
	own := *f.slice
	own.Spec.Devices = []resourceapi.Device{*f.device}
	own.Spec.Devices[0].Taints = nil
	own.Spec.SharedCounters = nil
	slicesOf := []*resourceapi.ResourceSlice{&own}
	other := resourceapi.DeviceTaint{Key: "other", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	for _, s := range f.group.slices {
		if cluster.PoolOf(s) != cluster.PoolOf(f.slice) || s.Spec.Pool.Generation != f.slice.Spec.Pool.Generation {
			continue
		}
		rest := *s
		rest.Spec.Devices = nil
		for _, d := range s.Spec.Devices {
			if held[d.Name] && d.Name != f.device.Name { // it uses counters, and is not to be allocated
				d.Taints = []resourceapi.DeviceTaint{other}
				rest.Spec.Devices = append(rest.Spec.Devices, d)
			}
		}
		if len(rest.Spec.Devices) > 0 || len(rest.Spec.SharedCounters) > 0 {
			slicesOf = append(slicesOf, &rest)
		}
	}
	for i, s := range slicesOf {
		one := *s
		one.Spec.Pool.ResourceSliceCount = int64(len(slicesOf))
		one.Name = fmt.Sprint(i)
		slicesOf[i] = &one
	}
	request := &resourceapi.ExactDeviceRequest{DeviceClassName: *p.Class, Capacity: *p.Capacity, Count: 1,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount}
	if p.Admin {
		request.AdminAccess = &p.Admin
	}
	claim := &resourceapi.ResourceClaim{}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "one", Exactly: request}}
	results, err := q.classes.Place(q.ctx, q.compiled, f.group.node, slicesOf, fit.HeldBy(holders, nil), claim)
	return err == nil && len(results) > 0
}

func capacityText(p cluster.Subrequest) string {
	if *p.Capacity == nil {
		return "all of a device"
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys((*p.Capacity).Requests)) {
		amount := (*p.Capacity).Requests[name]
		all = append(all, fmt.Sprintf("%s %s", name, amount.String()))
	}
	return strings.Join(all, ", ")
}

// quantityOf returns the amount that the subrequest asks for, or nil.
func quantityOf(p cluster.Subrequest, name resourceapi.QualifiedName) *resource.Quantity {
	if *p.Capacity == nil {
		return nil
	}
	if amount, ok := (*p.Capacity).Requests[name]; ok {
		return &amount
	}
	return nil
}

// OfClass reports whether all selectors of the class accept the driver's device. An expression that fails does not.
func OfClass(ctx context.Context, class *resourceapi.DeviceClass, driver string, d *resourceapi.Device) bool {
	return !slices.ContainsFunc(class.Spec.Selectors, func(s resourceapi.DeviceSelector) bool {
		ok, err := meets(ctx, driver, d, selectors.Compiled.GetOrCompile(expressionOf(s)))
		return err != nil || !ok
	})
}

// meets evaluates an expression on the driver's device, as the allocator does.
func meets(ctx context.Context, driver string, d *resourceapi.Device, program cel.CompilationResult) (bool, error) {
	if program.Error != nil {
		return false, program.Error
	}
	ok, _, err := program.DeviceMatches(ctx, cel.Device{Driver: driver,
		AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity})
	return ok, err
}
