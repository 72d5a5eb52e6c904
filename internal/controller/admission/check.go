// SPDX-License-Identifier: Apache-2.0

// Package admission judges claims and device classes when they are typed. What it refuses, the node would refuse too, later; what it
// warns of may go well.
package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/controller/view"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// Verdict is what there is to say about an object. The zero value: nothing.
type Verdict struct {
	Problems []error  // it can never work
	Warnings []string // it may not work, or not yet
}

// refuse adds a problem, once.
func (v *Verdict) refuse(err error) {
	if !slices.ContainsFunc(v.Problems, func(known error) bool { return known.Error() == err.Error() }) {
		v.Problems = append(v.Problems, err)
	}
}

// warn adds a warning, once.
func (v *Verdict) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(v.Warnings, text) {
		v.Warnings = append(v.Warnings, text)
	}
}

// Checker knows what the cluster has at the moment. It asks nobody.
type Checker struct{ View *view.View }

// Claim judges the spec of a claim, or that of a template's claims, which is below root.
func (c Checker) Claim(ctx context.Context, spec *resourceapi.ResourceClaimSpec, root *field.Path) Verdict {
	var v Verdict
	devices := root.Child("devices")
	for i, config := range spec.Devices.Config {
		c.config(config.DeviceConfiguration, devices.Child("config").Index(i), &v)
	}
	var asks []ask
	for i, request := range spec.Devices.Requests {
		for _, a := range asksOf(request, devices.Child("requests").Index(i)) {
			if class, ok := c.View.Class(a.DeviceClassName); ok && c.View.Ours(a.DeviceClassName) { // of others nothing is judged
				a.class = class
				c.ask(ctx, &a, &v)
			}
			asks = append(asks, a)
		}
	}
	if len(v.Problems) == 0 { // the rest takes the configurations as they were meant
		c.rehearse(ctx, spec, asks, devices, &v)
	}
	return v
}

// DeviceClass judges a class.
func (c Checker) DeviceClass(ctx context.Context, spec *resourceapi.DeviceClassSpec, root *field.Path) Verdict {
	var v Verdict
	for i, config := range spec.Config {
		c.config(config.DeviceConfiguration, root.Child("config").Index(i), &v)
	}
	failures := failures{}
	for _, kind := range c.View.Kinds() {
		c.accepts(ctx, kind, spec.Selectors, root.Child("selectors"), failures)
	}
	failures.warn(&v)
	return v
}

// config reads a configuration, if it is for the driver.
func (c Checker) config(config resourceapi.DeviceConfiguration, path *field.Path, v *Verdict) {
	if config.Opaque == nil || config.Opaque.Driver != c.View.Driver() {
		return
	}
	_, err := api.Decode(config.Opaque.Parameters.Raw, path.Child("opaque", "parameters"))
	for _, problem := range list(err) {
		v.refuse(problem)
	}
}

// list takes apart what was joined.
func list(err error) []error {
	var parts []error
	switch many := err.(type) { //nolint:errorlint // what is wrapped stays together with what wraps it
	case nil:
		return nil
	case utilerrors.Aggregate:
		parts = many.Errors()
	case interface{ Unwrap() []error }:
		parts = many.Unwrap()
	default:
		return []error{err}
	}
	var all []error
	for _, part := range parts {
		all = append(all, list(part)...)
	}
	return all
}

// ask is a request, or one of its alternatives.
type ask struct {
	resourceapi.DeviceSubRequest
	path    *field.Path
	request string      // of the claim
	of      *field.Path // the request
	admin   bool
	class   *resourceapi.DeviceClass // nil: it has no devices of the driver
	kinds   []*view.Kind             // that it could get
}

// never says whether nothing can match: such an alternative only takes a place in a list.
func (a ask) never() bool {
	return slices.ContainsFunc(a.Selectors, func(s resourceapi.DeviceSelector) bool { return s.CEL != nil && s.CEL.Expression == "false" })
}

// name is that of results: "request", or "request/alternative".
func (a ask) name() string {
	if a.Name == "" {
		return a.request
	}
	return a.request + "/" + a.Name
}

func asksOf(r resourceapi.DeviceRequest, path *field.Path) []ask {
	if e := r.Exactly; e != nil {
		return []ask{{request: r.Name, of: path, path: path.Child("exactly"), admin: ptr.Deref(e.AdminAccess, false),
			DeviceSubRequest: resourceapi.DeviceSubRequest{DeviceClassName: e.DeviceClassName, Selectors: e.Selectors,
				AllocationMode: e.AllocationMode, Count: e.Count, Tolerations: e.Tolerations, Capacity: e.Capacity}}}
	}
	var all []ask
	for i, sub := range r.FirstAvailable {
		all = append(all, ask{request: r.Name, of: path, path: path.Child("firstAvailable").Index(i), DeviceSubRequest: sub})
	}
	return all
}

// ask judges one by itself, and finds what it could get.
func (c Checker) ask(ctx context.Context, a *ask, v *Verdict) {
	known := c.capacity(a, v)
	failures := failures{}
	var best shortage
	for _, kind := range c.View.Kinds() {
		if !c.accepts(ctx, kind, a.class.Spec.Selectors, nil, nil) { // the class was judged by itself
			continue
		}
		if !c.accepts(ctx, kind, a.Selectors, a.path.Child("selectors"), failures) {
			continue
		}
		if less, lacks := lacking(kind, a); lacks {
			best = best.or(less)
			continue
		}
		a.kinds = append(a.kinds, kind)
	}
	failures.warn(v)
	if known && len(a.kinds) == 0 && best.kind != nil {
		v.warn("%s: no device that is published now, and that the selectors accept, has so much; the most is %s (%s)",
			a.path.Child("capacity", "requests").Key(string(best.name)), best.has.String(), best.kind)
	}
}

// shortage is what a kind of device has too little of.
type shortage struct {
	kind *view.Kind
	name resourceapi.QualifiedName
	has  resource.Quantity
}

// or is the one that has more.
func (s shortage) or(other shortage) shortage {
	if s.kind == nil || s.name == other.name && s.has.Cmp(other.has) < 0 {
		return other
	}
	return s
}

// lacking says what of the capacities that are asked for such a device has too little of.
func lacking(kind *view.Kind, a *ask) (less shortage, lacks bool) {
	if a.Capacity == nil {
		return shortage{}, false
	}
	for _, name := range slices.Sorted(maps.Keys(a.Capacity.Requests)) {
		wanted := a.Capacity.Requests[name]
		if most, ok := kind.Most(name); !ok || most.Cmp(wanted) < 0 {
			return shortage{kind, name, most}, true
		}
	}
	return shortage{}, false
}

// capacity judges the names and values of the capacities that are asked for.
func (c Checker) capacity(a *ask, v *Verdict) (ok bool) {
	if a.Capacity == nil {
		return true
	}
	known := sets.New[string]()
	for _, capacity := range inventory.AllCapacities {
		known.Insert(string(capacity.Name))
	}
	ok = true
	for _, name := range slices.Sorted(maps.Keys(a.Capacity.Requests)) {
		value := a.Capacity.Requests[name]
		path := a.path.Child("capacity", "requests").Key(string(name))
		domain, short, qualified := strings.Cut(string(name), "/")
		switch {
		case qualified && known.Has(short):
			v.refuse(field.Invalid(path, string(name), fmt.Sprintf("write %s: the scheduler does not find a capacity that is asked for with a domain (%s) and published without one", short, domain)))
		case !known.Has(string(name)):
			v.refuse(field.NotSupported(path, string(name), sets.List(known)))
		case name == "cores" && (value.Cmp(zero) < 0 || value.Cmp(hundred) > 0):
			v.refuse(field.Invalid(path, value.String(), "must be from 0 to 100: percent of the multiprocessors of one GPU"))
		case value.Cmp(zero) < 0:
			v.refuse(field.Invalid(path, value.String(), "must not be negative"))
		default:
			continue
		}
		ok = false
	}
	return ok
}

// failures are selectors that cannot say about some kinds of devices: what the scheduler would meet → on what.
type failures map[string][]string

func (f failures) warn(v *Verdict) {
	for _, failure := range slices.Sorted(maps.Keys(f)) {
		v.warn("%s; so it is on %s, and the scheduler gives up on a pod when a selector fails on any device that it looks at", failure, strings.Join(slices.Compact(f[failure]), ", "))
	}
}

// accepts says whether the selectors accept the kind, or may accept some of it; one that cannot say is noted, unless failures is nil.
func (c Checker) accepts(ctx context.Context, kind *view.Kind, selectors []resourceapi.DeviceSelector, path *field.Path, failures failures) bool {
	for i, s := range selectors {
		ok, err := c.View.Accepts(ctx, kind, s)
		if err != nil && ctx.Err() == nil && failures != nil {
			failure := fmt.Sprintf("%s: %v", path.Index(i).Child("cel", "expression"), cel.EnhanceRuntimeError(err))
			failures[failure] = append(failures[failure], kind.String())
		}
		if err != nil || !ok {
			return false
		}
	}
	return true
}
