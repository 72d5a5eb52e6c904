// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"reflect"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// go-nvml's mocks are structs with a function field per call, and panic if the field is nil. The functions below visit
// these fields, so that every call has an answer.

var returnType = reflect.TypeFor[nvml.Return]()

// eachFunc calls f with every function field of the mock and the name of its call.
func eachFunc(mock any, f func(call string, function reflect.Value)) {
	v := reflect.ValueOf(mock).Elem()
	for i := range v.NumField() {
		if call, ok := strings.CutSuffix(v.Type().Field(i).Name, "Func"); ok && v.Field(i).Kind() == reflect.Func {
			f(call, v.Field(i))
		}
	}
}

// copyFuncs gives the mock the functions of another one of the same type.
func copyFuncs(to, from any) {
	t, f := reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem()
	for i := range t.NumField() {
		if t.Field(i).Kind() == reflect.Func {
			t.Field(i).Set(f.Field(i))
		}
	}
}

// answer returns the results of a function of that type that returns ret: zero values and ret.
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

// guard calls gate before every function of the mock, and returns its result unless that is SUCCESS. Functions that are
// nil return the result of missing.
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

// refuse makes every nil function of the mock return ERROR_NOT_SUPPORTED.
func refuse(mock any) {
	eachFunc(mock, func(_ string, function reflect.Value) {
		if function.IsNil() {
			t := function.Type()
			function.Set(reflect.MakeFunc(t, func([]reflect.Value) []reflect.Value {
				return answer(t, nvml.ERROR_NOT_SUPPORTED)
			}))
		}
	})
}
