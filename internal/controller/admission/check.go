// SPDX-License-Identifier: Apache-2.0

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

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// Verdict is the result of a validation. The zero value means that the object is valid.
type Verdict struct {
	Problems []error  // the object can never work
	Warnings []string // the object may not work, or not yet
}

// maxTexts is how many problems, and how many warnings, a verdict has. The user decides how many there are.
const maxTexts = 100

// refuse adds a problem, once.
func (v *Verdict) refuse(err error) {
	same := func(known error) bool { return known.Error() == err.Error() }
	if len(v.Problems) < maxTexts && !slices.ContainsFunc(v.Problems, same) {
		v.Problems = append(v.Problems, err)
	}
}

// warn adds a warning, once.
func (v *Verdict) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(v.Warnings) < maxTexts && !slices.Contains(v.Warnings, text) {
		v.Warnings = append(v.Warnings, text)
	}
}

var (
	zero    = resource.MustParse("0")
	hundred = resource.MustParse("100")
)

// Checker validates against the current state of the cluster. It makes no API calls.
type Checker struct{ View *cluster.View }

// Claim validates the spec of a claim, or of the claims of a template. root is the path of the spec.
func (c Checker) Claim(ctx context.Context, spec *resourceapi.ResourceClaimSpec, root *field.Path) Verdict {
	var v Verdict
	devices := root.Child("devices")
	for i, config := range spec.Devices.Config {
		c.config(config.DeviceConfiguration, config.Requests, devices.Child("config").Index(i), &v)
	}
	var all []alternative
	for i, request := range cluster.Requests(spec) {
		of := devices.Child("requests").Index(i)
		for _, s := range request {
			a := alternative{Subrequest: s, request: spec.Devices.Requests[i].Name, of: of, path: of.Child("exactly")}
			if s.Alternative >= 0 {
				a.path = of.Child("firstAvailable").Index(s.Alternative)
			}
			class, exists := c.View.Class(*a.Class)
			switch {
			case !exists:
				c.missingClass(ctx, a, &v)
			case c.View.Ours(*a.Class): // classes of other drivers are not validated
				a.class = class
				c.checkAlternative(ctx, &a, &v)
			}
			all = append(all, a)
		}
		met := func(a alternative) bool { return a.class == nil || a.Alternative < 0 || len(a.kinds) > 0 }
		if len(request) > 0 && len(c.View.Kinds()) > 0 && ctx.Err() == nil &&
			!slices.ContainsFunc(all[len(all)-len(request):], met) {
			v.warn("%s: no device that is published now meets any alternative", of.Child("firstAvailable"))
		}
	}
	c.overNetwork(all, &v)
	c.checkTogether(ctx, spec, all, devices, &v)
	if len(v.Problems) == 0 { // the dry run needs valid configurations
		c.dryRun(ctx, spec, all, devices, &v)
	}
	if ctx.Err() != nil {
		v.Warnings = append(v.Warnings, fmt.Sprintf("%s: not all of it could be checked in time", devices))
	}
	return v
}

// DeviceClass validates the spec of the class of that name.
func (c Checker) DeviceClass(ctx context.Context, name string, spec *resourceapi.DeviceClassSpec,
	root *field.Path) Verdict {
	var v Verdict
	resource := ptr.Deref(spec.ExtendedResourceName, "")
	if other, ok := c.View.ExtendedClass(resource); ok && resource != "" && other != name {
		v.warn("%s: class %s has %s, too: the newest of them counts, and once it is deleted the scheduler finds none "+
			"until another is changed", root.Child("extendedResourceName"), other, resource)
	}
	for i, config := range spec.Config {
		c.config(config.DeviceConfiguration, nil, root.Child("config").Index(i), &v)
	}
	failures := selectorErrors{}
	for _, kind := range c.View.Kinds() {
		c.accepts(ctx, kind, spec.Selectors, root.Child("selectors"), failures)
	}
	if len(failures) > 0 {
		c.explain(ctx, c.View.Kinds(), spec.Selectors, root.Child("selectors"), failures, selectors.OnlyMistakes, &v)
	}
	failures.warn(&v)
	return v
}

// config validates a configuration of this driver for these requests. It warns about one that is in this driver's
// format and for another driver, and skips others.
func (c Checker) config(config resourceapi.DeviceConfiguration, requests []string, path *field.Path, v *Verdict) {
	if config.Opaque == nil {
		return
	}
	if config.Opaque.Driver != c.View.Driver() {
		c.forNobody(config.Opaque, path.Child("opaque"), v)
		return
	}
	decoded, err := api.Decode(config.Opaque.Parameters.Raw, path.Child("opaque", "parameters"))
	if err == nil {
		err = decoded.CheckRequests(requests, path.Child("requests"))
	}
	for _, problem := range flatten(err) {
		v.refuse(problem)
	}
}

// flatten splits joined and aggregated errors.
func flatten(err error) []error {
	var parts []error
	switch many := err.(type) { //nolint:errorlint // only the joined errors themselves, not what they wrap
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
		all = append(all, flatten(part)...)
	}
	return all
}

// alternative is a subrequest of a claim that is checked.
type alternative struct {
	cluster.Subrequest
	path    *field.Path
	request string                   // name of the request
	of      *field.Path              // of the request
	class   *resourceapi.DeviceClass // nil: not a class of this driver
	kinds   []*cluster.DeviceKind    // kinds of devices that match
}

// checkAlternative validates one alternative by itself, and sets the kinds of devices that match it.
func (c Checker) checkAlternative(ctx context.Context, a *alternative, v *Verdict) {
	known := c.capacity(a, v)
	for i, t := range *a.Tolerations {
		if t.Effect == "" {
			v.warn("%s: %s", a.path.Child("tolerations").Index(i), cluster.NoEffect)
		}
	}
	failures := selectorErrors{}
	var best shortage
	var ofClass []*cluster.DeviceKind
	selected := false
	for _, kind := range c.View.Kinds() {
		if ctx.Err() != nil {
			break
		}
		if !c.accepts(ctx, kind, a.class.Spec.Selectors, nil, nil) { // the class is validated when it is written
			continue
		}
		ofClass = append(ofClass, kind)
		if !c.accepts(ctx, kind, *a.Selectors, a.path.Child("selectors"), failures) {
			continue
		}
		selected = true
		if less, lacks := lacking(kind, a); lacks {
			best = best.or(less)
			continue
		}
		a.kinds = append(a.kinds, kind)
	}
	switch {
	case len(ofClass) == 0:
		c.emptyClass(ctx, *a, v)
	case !selected && !a.MatchesNothing():
		what := selectors.Everything
		if a.Alternative >= 0 {
			what = selectors.OnlyMistakes
		}
		if !c.explain(ctx, ofClass, *a.Selectors, a.path.Child("selectors"), failures, what, v) &&
			len(failures) == 0 && a.Alternative < 0 && ctx.Err() == nil {
			v.warn("%s: no device that is published now meets all of them", a.path.Child("selectors"))
		}
	}
	failures.warn(v)
	if known && len(a.kinds) == 0 && best.kind != nil {
		v.warn("%s: %s", a.path.Child("capacity", "requests").Key(string(best.name)), best)
	}
	c.coresAlone(*a, v)
}

// overNetwork refuses an alternative that asks for more than one GPU over the network, and two requests that can only
// get such GPUs: the client of an engine has one address and one token.
func (c Checker) overNetwork(all []alternative, v *Verdict) {
	const limit = "a claim has at most one GPU over the network"
	class, first := remote.Driver(c.View.Driver()), ""
	for i, a := range all {
		if *a.Class != class {
			continue
		}
		switch {
		case a.All():
			v.refuse(field.Invalid(a.path.Child("allocationMode"), *a.Mode, "must be ExactCount: "+limit))
		case *a.Count > 1:
			v.refuse(field.Invalid(a.path.Child("count"), *a.Count, "must be 1: "+limit))
		case a.Admin:
			v.refuse(field.Invalid(a.path.Child("adminAccess"), true, "must be false for a GPU over the network"))
		}
		others := slices.ContainsFunc(all, func(b alternative) bool {
			return b.of == a.of && *b.Class != class
		})
		switch {
		case others || i > 0 && all[i-1].of == a.of: // another class may be chosen, or the request has been counted
		case first == "":
			first = a.request
		default:
			v.refuse(field.Invalid(a.path.Child("deviceClassName"), class,
				fmt.Sprintf("request %s has this class, too: %s", first, limit)))
		}
	}
}

// shortage is a requested capacity that a kind of device does not have enough of.
type shortage struct {
	kind      *cluster.DeviceKind
	name      resourceapi.QualifiedName
	published bool // whether the kind has the capacity at all
	has       resource.Quantity
}

// or returns the shortage with the larger capacity.
func (s shortage) or(other shortage) shortage {
	if s.kind == nil || s.name == other.name && (!s.published || s.has.Cmp(other.has) < 0) {
		return other
	}
	return s
}

// String says what the devices have, for people.
func (s shortage) String() string {
	const none = "no device that is published now, and that the selectors accept, has "
	switch {
	case s.published:
		return none + fmt.Sprintf("so much; the most is %s (%s)", s.has.String(), s.kind)
	case s.name == "shares":
		return none + "this capacity; GPUs have it where the node configuration has sharing: {replicated: N}"
	}
	return none + "this capacity"
}

// lacking returns the first requested capacity that the kind does not have enough of.
func lacking(kind *cluster.DeviceKind, a *alternative) (less shortage, lacks bool) {
	for _, name := range slices.Sorted(maps.Keys(a.Asked())) {
		wanted := a.Asked()[name]
		if most, ok := kind.Most(name); !ok || most.Cmp(wanted) < 0 {
			return shortage{kind, name, ok, most}, true
		}
	}
	return shortage{}, false
}

// capacity validates the names and values of the requested capacities.
func (c Checker) capacity(a *alternative, v *Verdict) (ok bool) {
	known := sets.New[string]()
	for _, capacity := range inventory.AllCapacities {
		known.Insert(string(capacity.Name))
	}
	ok = true
	for _, name := range slices.Sorted(maps.Keys(a.Asked())) {
		value := a.Asked()[name]
		path := a.path.Child("capacity", "requests").Key(string(name))
		domain, short, qualified := strings.Cut(string(name), "/")
		switch {
		case qualified && known.Has(short):
			v.refuse(field.Invalid(path, string(name), fmt.Sprintf("write %s: the scheduler does not find a capacity "+
				"that is asked for with a domain (%s) and published without one", short, domain)))
		case !known.Has(string(name)):
			v.refuse(field.NotSupported(path, string(name), sets.List(known)))
		case name == "cores" && (value.Cmp(zero) < 0 || value.Cmp(hundred) > 0):
			v.refuse(field.Invalid(path, value.String(), "must be from 0 to 100: percent of the multiprocessors of "+
				"one GPU"))
		case value.Cmp(zero) < 0:
			v.refuse(field.Invalid(path, value.String(), "must not be negative"))
		case !whole(value):
			v.refuse(field.Invalid(path, value.String(), "must be a whole number"+fractionHint(name, value)))
		default:
			if name == "memory" && value.Cmp(leastMemory) < 0 {
				v.warn("%s: %s of memory is less than a program needs before its first allocation, some hundred MiB: "+
					"write an amount with its unit, such as 5Gi", path, memoryText(value))
			}
			if name == "cores" && value.IsZero() {
				v.warn("%s: 0 is no limit: write 1 to 100, or leave cores out", path)
			}
			continue
		}
		ok = false
	}
	return ok
}

// selectorErrors maps the error of a selector, as the scheduler would report it, to the kinds of devices where it
// occurs.
type selectorErrors map[string][]string

// drop forgets the errors of the selector at the path. It reports whether there were any.
func (f selectorErrors) drop(path *field.Path) bool {
	before := len(f)
	maps.DeleteFunc(f, func(failure string, _ []string) bool {
		return strings.HasPrefix(failure, path.String()+": ")
	})
	return len(f) < before
}

func (f selectorErrors) warn(v *Verdict) {
	for _, failure := range slices.Sorted(maps.Keys(f)) {
		v.warn("%s; so it is on %s, and the scheduler gives up on a pod when a selector fails on any device that it "+
			"looks at", failure, strings.Join(slices.Compact(f[failure]), ", "))
	}
}

// accepts reports whether the selectors accept the kind, or may accept some of its devices. A selector that fails
// accepts nothing; its error is added to failures, unless failures is nil.
func (c Checker) accepts(ctx context.Context, kind *cluster.DeviceKind, selectors []resourceapi.DeviceSelector,
	path *field.Path,
	failures selectorErrors) bool {
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
