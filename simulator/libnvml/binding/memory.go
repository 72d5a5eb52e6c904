// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"reflect"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// cType returns the type with the layout of C's: go-nvml's own, with numbers in place of handles.
func cType(t reflect.Type) reflect.Type {
	switch {
	case isHandle(t):
		return reflect.TypeFor[uint64]()
	case t.Kind() == reflect.Bool:
		return reflect.TypeFor[uint32]()
	case t.Kind() != reflect.Struct:
		return t
	}
	fields, changed := make([]reflect.StructField, t.NumField()), false
	for i := range fields {
		fields[i] = reflect.StructField{Name: t.Field(i).Name, Type: cType(t.Field(i).Type)}
		changed = changed || fields[i].Type != t.Field(i).Type
	}
	if !changed {
		return t
	}
	return reflect.StructOf(fields)
}

// cValue returns the value in the layout of C.
func cValue(h *handles, v reflect.Value) reflect.Value {
	t := cType(v.Type())
	out := reflect.New(t).Elem()
	switch {
	case t == v.Type():
		out.Set(v)
	case v.Kind() == reflect.Interface:
		if !v.IsNil() {
			out.SetUint(h.put(v.Interface()))
		}
	case v.Kind() == reflect.Bool:
		if v.Bool() {
			out.SetUint(1)
		}
	default:
		for i := range v.NumField() {
			out.Field(i).Set(cValue(h, v.Field(i)))
		}
	}
	return out
}

// write writes the value, which has that size in C. A struct with a version must be the one that the caller has.
func write(h *handles, to unsafe.Pointer, size uintptr, v reflect.Value) nvml.Return {
	if to == nil {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	c := cValue(h, v)
	if version := versionOf(c); version != 0 && version != *(*uint32)(to) {
		return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	from := reflect.New(c.Type())
	from.Elem().Set(c)
	copy(unsafe.Slice((*byte)(to), size), unsafe.Slice((*byte)(from.UnsafePointer()), c.Type().Size()))
	return nvml.SUCCESS
}

// versionOf returns the version that the struct begins with, or 0.
func versionOf(v reflect.Value) uint32 {
	if v.Kind() == reflect.Struct && v.NumField() > 0 && v.Type().Field(0).Name == "Version" {
		return uint32(v.Field(0).Uint())
	}
	return 0
}

// writeAll writes the elements of a slice to an array whose elements have that size. It writes nothing to null.
func writeAll(h *handles, to unsafe.Pointer, size uintptr, all reflect.Value) nvml.Return {
	if to == nil {
		return nvml.SUCCESS
	}
	for i := range all.Len() {
		if ret := write(h, unsafe.Add(to, uintptr(i)*size), size, all.Index(i)); ret != nvml.SUCCESS {
			return ret
		}
	}
	return nvml.SUCCESS
}

// text returns the C string.
func text(from unsafe.Pointer) string {
	length := 0
	for *(*byte)(unsafe.Add(from, length)) != 0 {
		length++
	}
	return string(unsafe.Slice((*byte)(from), length))
}

// putText writes a C string to a buffer of that length.
func putText(to unsafe.Pointer, length uint32, s string) nvml.Return {
	if to == nil {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if int(length) < len(s)+1 {
		return nvml.ERROR_INSUFFICIENT_SIZE
	}
	copy(unsafe.Slice((*byte)(to), length), s+"\x00")
	return nvml.SUCCESS
}
