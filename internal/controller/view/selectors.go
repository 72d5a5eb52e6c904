// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// How many compiled selectors are kept, and how many of their answers.
const (
	cachedSelectors = 1000
	cachedAnswers   = 20000
)

// SetClass takes what a device class says now.
func (v *View) SetClass(c *resourceapi.DeviceClass) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.classes[c.Name] = c
	v.ours[c.Name] = selects(c, v.driver)
}

// DeleteClass forgets a device class.
func (v *View) DeleteClass(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.classes, name)
	delete(v.ours, name)
}

// Class finds a device class. It is not to be changed.
func (v *View) Class(name string) (*resourceapi.DeviceClass, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	class, ok := v.classes[name]
	return class, ok
}

// Ours says whether a class is for devices of the driver.
func (v *View) Ours(class string) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.ours[class]
}

// selects says whether a selector of the class names the driver.
func selects(class *resourceapi.DeviceClass, driver string) bool {
	quoted := []string{"'" + driver + "'", `"` + driver + `"`}
	return slices.ContainsFunc(class.Spec.Selectors, func(s resourceapi.DeviceSelector) bool {
		return s.CEL != nil && slices.ContainsFunc(quoted, func(q string) bool { return strings.Contains(s.CEL.Expression, q) })
	})
}

// Accepts says whether the selector accepts devices of the kind, or may accept some of them: those that differ in their place only.
// The error is what the scheduler would meet.
func (v *View) Accepts(ctx context.Context, k *Kind, s resourceapi.DeviceSelector) (bool, error) {
	if s.CEL == nil {
		return true, nil
	}
	key := question{k.ID, s.CEL.Expression}
	if known, ok := v.answers.Get(key); ok {
		is := known.(answer)
		return is.accepts, is.err
	}
	compiled := v.selectors.GetOrCompile(s.CEL.Expression)
	if compiled.Error != nil {
		return false, compiled.Error
	}
	ok, _, err := compiled.DeviceMatches(ctx, k.Matchable(v.driver))
	is := answer{err == nil && (ok || aboutPlace(s.CEL.Expression)), err}
	if ctx.Err() == nil { // otherwise it was interrupted
		v.answers.Add(key, is)
	}
	return is.accepts, is.err
}

// question is what a selector is asked, and answer what it says: the same at any time, since a kind does not change.
type (
	question struct{ kind, selector string }
	answer   struct {
		accepts bool
		err     error
	}
)

// aboutPlace says whether a selector looks at what tells devices of one kind apart, so that the answer for one of them is none for
// the others.
func aboutPlace(expression string) bool {
	for name := range placeAttributes {
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
