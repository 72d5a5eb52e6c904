// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"reflect"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// go-nvml's mocks are structs with a function per call, and panic where the function is nil. What follows goes over these
// functions, so that a call is answered even when nobody has thought of it.

var returnType = reflect.TypeFor[nvml.Return]()

// eachFunc calls f with every function of the mock that mock points to and the name of its call.
func eachFunc(mock any, f func(call string, function reflect.Value)) {
	v := reflect.ValueOf(mock).Elem()
	for i := range v.NumField() {
		if call, ok := strings.CutSuffix(v.Type().Field(i).Name, "Func"); ok && v.Field(i).Kind() == reflect.Func {
			f(call, v.Field(i))
		}
	}
}

// answer is what a function of that type returns when all it says is ret: zero values beside it.
func answer(t reflect.Type, ret nvml.Return) []reflect.Value {
	out := make([]reflect.Value, t.NumOut())
	for i := range out {
		out[i] = reflect.Zero(t.Out(i))
		if t.Out(i) == returnType {
			out[i] = reflect.ValueOf(ret)
		}
	}
	return out
}

// guard puts gate before every function of the mock: what it returns other than SUCCESS is the answer. A function that is
// nil answers what missing says.
func guard(mock any, gate, missing func(call string) nvml.Return) {
	eachFunc(mock, func(call string, function reflect.Value) {
		inner, t := reflect.ValueOf(function.Interface()), function.Type()
		function.Set(reflect.MakeFunc(t, func(args []reflect.Value) []reflect.Value {
			if ret := gate(call); ret != nvml.SUCCESS {
				return answer(t, ret)
			}
			if inner.IsNil() {
				return answer(t, missing(call))
			}
			return inner.Call(args)
		}))
	})
}

// refuse gives every function of the mock that is nil one that answers ERROR_NOT_SUPPORTED.
func refuse(mock any) {
	eachFunc(mock, func(_ string, function reflect.Value) {
		if function.IsNil() {
			t := function.Type()
			function.Set(reflect.MakeFunc(t, func([]reflect.Value) []reflect.Value { return answer(t, nvml.ERROR_NOT_SUPPORTED) }))
		}
	})
}
