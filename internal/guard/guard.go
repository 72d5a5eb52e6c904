// SPDX-License-Identifier: Apache-2.0

// Package guard keeps a panic about one object from ending the program, which serves all others.
package guard

import (
	"errors"
	"fmt"
	"runtime/debug"

	"k8s.io/klog/v2"
)

// ErrPanic means that a function has panicked.
var ErrPanic = errors.New("panic")

// Do calls f. A panic becomes an error that wraps ErrPanic, and is logged with its stack. what names the work for
// people.
func Do(what string, f func() error) (err error) {
	defer Recover(what, &err)
	return f()
}

// Recover does the same for the function that defers it: it sets the error which that function returns.
func Recover(what string, err *error) {
	if r := recover(); r != nil {
		klog.ErrorS(nil, "Recovered from a panic", "in", what, "panic", r, "stack", string(debug.Stack()))
		*err = fmt.Errorf("%s: %w: %v", what, ErrPanic, r)
	}
}
