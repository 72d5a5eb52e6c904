// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
)

// Sizes of the caches of compiled selectors and of their results. Users choose the selectors: one of maxExpression
// bytes needs 75 KiB when it is compiled, and some 20 ms until then.
const (
	cachedSelectors = 300
	cachedResults   = 10000
	maxExpression   = 2 << 10
)

// SetClass adds or updates a device class.
func (v *View) SetClass(c *resourceapi.DeviceClass) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.classes[c.Name] = c
	v.ours[c.Name] = selects(c, v.driver)
}

// DeleteClass removes a device class.
func (v *View) DeleteClass(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.classes, name)
	delete(v.ours, name)
}

// Class returns a device class. The caller must not change it.
func (v *View) Class(name string) (*resourceapi.DeviceClass, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	class, ok := v.classes[name]
	return class, ok
}

// ClassNames returns the names of all device classes, sorted.
func (v *View) ClassNames() []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.Sorted(maps.Keys(v.classes))
}

// Extended reports whether a class of the driver stands behind the extended resource.
func (v *View) Extended(resource string) bool {
	_, ok := v.ExtendedClass(resource)
	return ok
}

// ExtendedClass returns the class of the driver behind the extended resource: of several the newest, as the scheduler
// does.
func (v *View) ExtendedClass(resource string) (class string, ok bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if class, ok := strings.CutPrefix(resource, resourceapi.ResourceDeviceClassPrefix); ok {
		return class, v.ours[class]
	}
	var newest *resourceapi.DeviceClass
	for name, c := range v.classes {
		if !v.ours[name] || ptr.Deref(c.Spec.ExtendedResourceName, "") != resource {
			continue
		}
		if newest == nil || newest.CreationTimestamp.Before(&c.CreationTimestamp) ||
			newest.CreationTimestamp.Equal(&c.CreationTimestamp) && name < newest.Name {
			newest = c
		}
	}
	if newest == nil {
		return "", false
	}
	return newest.Name, true
}

// Ours reports whether the selectors of a class name the driver.
func (v *View) Ours(class string) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.ours[class]
}

// ExtendedResources returns the extended resources of the classes whose selectors name the driver; never nil.
func (v *View) ExtendedResources() []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	all := []string{}
	for name, class := range v.classes {
		if v.ours[name] && class.Spec.ExtendedResourceName != nil {
			all = append(all, *class.Spec.ExtendedResourceName)
		}
	}
	slices.Sort(all)
	return all
}

// selects reports whether a selector of the class names the driver.
func selects(class *resourceapi.DeviceClass, driver string) bool {
	quoted := []string{"'" + driver + "'", `"` + driver + `"`}
	return slices.ContainsFunc(class.Spec.Selectors, func(s resourceapi.DeviceSelector) bool {
		return s.CEL != nil && slices.ContainsFunc(quoted,
			func(q string) bool { return strings.Contains(s.CEL.Expression, q) })
	})
}

// AcceptsAll reports whether all selectors accept devices of the kind, as Accepts does. A selector that fails does not:
// the scheduler gives up where one fails.
func (v *View) AcceptsAll(ctx context.Context, k *DeviceKind, all []resourceapi.DeviceSelector) bool {
	return !slices.ContainsFunc(all, func(s resourceapi.DeviceSelector) bool {
		ok, err := v.Accepts(ctx, k, s)
		return err != nil || !ok
	})
}

// Accepted returns the kinds of devices that the subrequest accepts, as AcceptsAll does, and that have the capacities.
func (v *View) Accepted(ctx context.Context, s Subrequest) (all []*DeviceKind) {
	class, ok := v.Class(*s.Class)
	if !ok {
		return nil
	}
	for _, k := range v.Kinds() {
		if k.Has(s.Asked()) && v.AcceptsAll(ctx, k, class.Spec.Selectors) && v.AcceptsAll(ctx, k, *s.Selectors) {
			all = append(all, k)
		}
	}
	return all
}

// Accepts reports whether the selector accepts devices of the kind, or may accept some of them by their identity, or is
// too long to find out. The error is that of the scheduler.
func (v *View) Accepts(ctx context.Context, k *DeviceKind, s resourceapi.DeviceSelector) (bool, error) {
	if s.CEL == nil || len(s.CEL.Expression) > maxExpression {
		return true, nil
	}
	key := resultKey{k.ID, s.CEL.Expression}
	if known, ok := v.results.Get(key); ok {
		r := known.(result)
		return r.accepts, r.err
	}
	if err := ctx.Err(); err != nil { // compiling takes longer than evaluating
		return false, err
	}
	compiled := v.selectors.GetOrCompile(s.CEL.Expression)
	if compiled.Error != nil {
		return false, compiled.Error
	}
	ok, _, err := compiled.DeviceMatches(ctx, allocator.Device(v.driver, &k.Device))
	r := result{err == nil && (ok || selectsByIdentity(s.CEL.Expression)), err}
	if ctx.Err() == nil { // else the evaluation was interrupted
		v.results.Add(key, r)
	}
	return r.accepts, r.err
}

// A result never expires: a kind does not change.
type (
	resultKey struct{ kind, selector string }
	result    struct {
		accepts bool
		err     error
	}
)

// selectsByIdentity reports whether a selector uses an attribute that differs between devices of one kind. Then the
// result for one device does not hold for the others.
func selectsByIdentity(expression string) bool {
	for name := range identityAttributes {
		_, short, found := strings.Cut(string(name), "/")
		if !found {
			short = string(name)
		}
		if strings.Contains(expression, short) {
			return true
		}
	}
	return false
}

// constant matches a string literal, and brackets that have only literals, or a number: an index, or a list.
var constant = regexp.MustCompile(`\[\d+\]|\[\??\s*(?:'[^'\\]*'|"[^"\\]*")(?:\s*,\s*(?:'[^'\\]*'|"[^"\\]*"))*\s*\]|` +
	`'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"`)

// computed matches what may name an attribute in another way: an index that is not constant, and the macros with two
// variables.
var computed = regexp.MustCompile(`\[|\(\s*\w+\s*,\s*\w+\s*,`)

// quoting matches literals that constant may read otherwise than CEL does.
var quoting = regexp.MustCompile(`\\['"]|'''|"""`)

// ByIdentity reports whether a selector may accept some of the devices of a kind only, or is not known (SlimClaim).
func ByIdentity(all []resourceapi.DeviceSelector) bool {
	return slices.ContainsFunc(all, func(s resourceapi.DeviceSelector) bool {
		return s.CEL == nil || len(s.CEL.Expression) > maxExpression || mayDiffer(s.CEL.Expression)
	})
}

// mayDiffer reports whether the selector may differ between devices of one kind, or fail for some of them only, also
// where its user hides that.
func mayDiffer(expression string) bool {
	return selectsByIdentity(expression) || quoting.MatchString(expression) ||
		computed.MatchString(constant.ReplaceAllString(expression, ""))
}
