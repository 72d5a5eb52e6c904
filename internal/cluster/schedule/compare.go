// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
)

// LossKind is why a device is excluded.
type LossKind string

// The reasons, in the order in which they are checked.
const (
	LostIncomplete LossKind = "IncompletePool"
	LostClass      LossKind = "Class"
	LostClause     LossKind = "Clause"
	LostError      LossKind = "ExpressionError"
	LostTaint      LossKind = "Taint"
	LostCapacity   LossKind = "Capacity"
	LostHeld       LossKind = "Held"
)

// LossKinds are all reasons, in that order.
var LossKinds = []LossKind{LostIncomplete, LostClass, LostClause, LostError, LostTaint, LostCapacity, LostHeld}

// Reason is why a request does not get a device.
type Reason struct {
	Kind   LossKind
	Detail string
}

// Candidate is a device that is compared with a subrequest, and the reasons why the subrequest does not get it.
type Candidate struct {
	Group   *Group
	Slice   *resourceapi.ResourceSlice
	Device  *resourceapi.Device
	Reasons []Reason                  // the first, and whether there are more: at most two
	other   bool                      // the class does not have the device
	Failed  bool                      // an expression has an error
	Errors  []ClauseRef               // clauses that fail with an error
	Taints  []resourceapi.DeviceTaint // not tolerated
}

// lose adds a reason.
func (f *Candidate) lose(kind LossKind, detail string) {
	f.other, f.Failed = f.other || kind == LostClass, f.Failed || kind == LostError
	if len(f.Reasons) < 2 {
		f.Reasons = append(f.Reasons, Reason{kind, detail})
	}
}

// ClauseRef names a clause of a subrequest.
type ClauseRef struct{ Selector, Clause int }

// InClass reports whether the class has the device.
func (f Candidate) InClass() bool { return !f.other }

// NodesOf returns how many nodes have the device of the candidate.
func (f Candidate) NodesOf() int {
	if ptr.Deref(f.Slice.Spec.NodeName, "") == "" {
		return 1
	}
	return len(f.Group.Names)
}

// condition is a clause of a subrequest, compiled.
type condition struct {
	ClauseRef
	text    string
	program cel.CompilationResult
}

// conditions compiles the clauses of a subrequest: for many devices, and perhaps more than the cache has.
func (q *Question) conditions(claim, number int, p cluster.Subrequest) []condition {
	var all []condition
	for k := range *p.Selectors {
		for n, c := range q.Workload.Clauses[SelectorRef{RequestID{claim, number}, k}] {
			if q.Context.Err() != nil {
				return nil
			}
			all = append(all, condition{ClauseRef{k, n}, c.Text, q.compiled.GetOrCompile(c.Text)})
		}
	}
	return all
}

// Compare compares a subrequest of a claim with all devices of the groups. The error is ErrLimit.
func (q *Question) Compare(claim int, number int, groups []*Group, most int) ([]Candidate, error) {
	p := cluster.Subrequests(&q.Workload.Claims[claim].Spec)[number]
	class, conditions := q.ClassByName[*p.Class], q.conditions(claim, number, p)
	var all []Candidate
	resource := q.Workload.Origins[claim].Extended[p.Name]
	for _, s := range groups {
		if FromPlugin(s.Node, resource) {
			continue // the node takes no devices for it
		}
		current, count := cluster.Current(s.Slices), map[cluster.PoolID]int64{}
		for _, slice := range current {
			count[cluster.PoolOf(slice)]++
		}
		for _, slice := range current {
			incomplete := count[cluster.PoolOf(slice)] < slice.Spec.Pool.ResourceSliceCount
			for i := range slice.Spec.Devices {
				d := &slice.Spec.Devices[i]
				if !allocator.Near(s.Node, slice, d) {
					continue
				}
				if q.Context.Err() != nil || len(all) == most {
					return nil, ErrLimit
				}
				f := Candidate{Group: s, Slice: slice, Device: d}
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

// CompareAll compares each subrequest of each claim with the devices of the nodes that the pod does not exclude. If it
// excludes all, those of all nodes are compared. The error is ErrLimit.
func (q *Question) CompareAll() (map[RequestID][]Candidate, error) {
	groups := q.Open()
	if len(groups) == 0 {
		groups = q.Groups
	}
	all, left := map[RequestID][]Candidate{}, q.Limits.Candidates
	for i, claim := range q.Workload.Claims {
		for j, p := range cluster.Subrequests(&claim.Spec) {
			if q.ClassByName[*p.Class] == nil {
				continue
			}
			of, err := q.Compare(i, j, groups, left)
			if err != nil {
				return nil, err
			}
			all[RequestID{i, j}], left = of, left-len(of)
		}
	}
	return all, nil
}

// examine fills in the reasons.
func (q *Question) examine(f *Candidate, p cluster.Subrequest, class *resourceapi.DeviceClass, conditions []condition) {
	for _, s := range class.Spec.Selectors {
		ok, err := Meets(q.Context, f.Slice.Spec.Driver, f.Device, q.compiled.GetOrCompile(expressionOf(s)))
		if err != nil {
			f.lose(LostError, q.once(fmt.Sprintf("class %s: %s: %v", class.Name, expressionOf(s), err)))
		} else if !ok {
			f.lose(LostClass, "not of class "+class.Name)
			return
		}
	}
	for _, c := range conditions {
		if q.Context.Err() != nil {
			return
		}
		ok, err := Meets(q.Context, f.Slice.Spec.Driver, f.Device, c.program)
		switch {
		case err != nil:
			f.lose(LostError, q.once(fmt.Sprintf("%s: %v", c.text, err)))
			f.Errors = append(f.Errors, c.ClauseRef)
		case !ok:
			f.lose(LostClause, c.text)
		}
	}
	f.Taints = cluster.Untolerated(f.Device.Taints, *p.Tolerations)
	for _, t := range f.Taints {
		f.lose(LostTaint, q.taintDetail(t))
	}
	if len(f.Reasons) > 0 {
		return
	}
	if !q.alone(f, p, nil) {
		f.lose(LostCapacity, "less capacity than requested: "+capacityText(p))
	} else if !p.Admin && len(f.Group.Holders) > 0 && !q.alone(f, p, f.Group.Holders) {
		f.lose(LostHeld, "held by other claims")
	}
}

// taintDetail returns the taint for people. The value of the one of a preemption is left out: whoever knows it can take
// the devices, which are kept for a pod of perhaps another namespace. So is that of a reservation where others read it.
func (c *Cluster) taintDetail(t resourceapi.DeviceTaint) string {
	if t.Key == cluster.PreemptionTaint || t.Key == cluster.ReservedTaint && c.HideOthers {
		return t.Key
	}
	return cluster.TaintText(t)
}

// alone reports whether the subrequest gets the device, and only that, while the claims hold what they hold.
func (q *Question) alone(f *Candidate, p cluster.Subrequest, holders []*resourceapi.ResourceClaim) bool {
	q.Asked++
	held := map[string]bool{}
	for _, claim := range holders {
		for _, r := range cluster.Results(claim) {
			if cluster.PoolOf(f.Slice) == cluster.PoolOfResult(r) {
				held[r.Device] = true
			}
		}
	}
	own := *f.Slice
	own.Spec.Devices = []resourceapi.Device{*f.Device}
	own.Spec.Devices[0].Taints = nil
	own.Spec.SharedCounters = nil
	slicesOf := []*resourceapi.ResourceSlice{&own}
	other := resourceapi.DeviceTaint{Key: "other", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	for _, s := range f.Group.Slices {
		if cluster.PoolOf(s) != cluster.PoolOf(f.Slice) || s.Spec.Pool.Generation != f.Slice.Spec.Pool.Generation {
			continue
		}
		rest := *s
		rest.Spec.Devices = nil
		for _, d := range s.Spec.Devices {
			if held[d.Name] && d.Name != f.Device.Name { // it uses counters, and is not to be allocated
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
	results, err := q.ClassByName.Place(q.Context, q.compiled, f.Group.Node, slicesOf, allocator.HeldBy(holders, nil),
		claim)
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

// QuantityOf returns the amount that the subrequest asks for, or nil.
func QuantityOf(p cluster.Subrequest, name resourceapi.QualifiedName) *resource.Quantity {
	if *p.Capacity == nil {
		return nil
	}
	if amount, ok := (*p.Capacity).Requests[name]; ok {
		return &amount
	}
	return nil
}

// ClassAccepts reports whether all selectors of the class accept the driver's device. An expression that fails does
// not.
func ClassAccepts(ctx context.Context, class *resourceapi.DeviceClass, driver string, d *resourceapi.Device) bool {
	return !slices.ContainsFunc(class.Spec.Selectors, func(s resourceapi.DeviceSelector) bool {
		ok, err := Meets(ctx, driver, d, selectors.Compiled.GetOrCompile(expressionOf(s)))
		return err != nil || !ok
	})
}

// Meets evaluates an expression on the driver's device, as the allocator does.
func Meets(ctx context.Context, driver string, d *resourceapi.Device, program cel.CompilationResult) (bool, error) {
	if program.Error != nil {
		return false, program.Error
	}
	ok, _, err := program.DeviceMatches(ctx, allocator.Device(driver, d))
	return ok, err
}
