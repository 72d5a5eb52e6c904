// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"reflect"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// intSize is the size of C's int and of its enums.
const intSize = 4

// parameters are those of a C function, in order, while they are compared with those of a method.
type parameters struct {
	sizes []uint32
	next  int
	bad   bool // some do not fit
}

// take returns the index of the next parameter, which must have one of the sizes. Only a pointer has a size other than
// 0.
func (p *parameters) take(sizes ...uintptr) int {
	at := p.next
	p.next++
	if !p.is(at, sizes...) {
		p.bad = true
	}
	return at
}

// is says whether the parameter has one of the sizes.
func (p *parameters) is(at int, sizes ...uintptr) bool {
	if at >= len(p.sizes) {
		return false
	}
	for _, size := range sizes {
		if uintptr(p.sizes[at]) == size {
			return true
		}
	}
	return false
}

// input returns how an argument of that type is made of the next parameters.
func (p *parameters) input(t reflect.Type) input {
	switch {
	case isHandle(t):
		at := p.take(0)
		return func(h *handles, values []uint64) (reflect.Value, nvml.Return) {
			if v, ok := h.get(values[at], t); ok {
				return v, nvml.SUCCESS
			}
			return reflect.Value{}, nvml.ERROR_INVALID_ARGUMENT
		}
	case t.Kind() == reflect.String:
		at := p.take(1)
		return func(_ *handles, values []uint64) (reflect.Value, nvml.Return) {
			if values[at] == 0 {
				return reflect.Value{}, nvml.ERROR_INVALID_ARGUMENT
			}
			return reflect.ValueOf(text(pointer(values, at))), nvml.SUCCESS
		}
	case isNumber(t):
		at := p.take(0)
		return func(_ *handles, values []uint64) (reflect.Value, nvml.Return) {
			return number(t, values[at]), nvml.SUCCESS
		}
	case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct:
		return p.structInput(t.Elem())
	case t.Kind() == reflect.Slice:
		count, at := p.take(0), p.take(t.Elem().Size())
		return func(_ *handles, values []uint64) (reflect.Value, nvml.Return) {
			n := int(int32(values[count]))
			if n < 0 || values[at] == 0 {
				return reflect.Value{}, nvml.ERROR_INVALID_ARGUMENT
			}
			return reflect.NewAt(reflect.ArrayOf(n, t.Elem()), pointer(values, at)).Elem().Slice(0, n), nvml.SUCCESS
		}
	}
	p.bad = true
	return nil
}

// structInput returns how a pointer to a struct is made of the next parameter. Where C takes the ID of a profile,
// go-nvml takes the profile.
func (p *parameters) structInput(t reflect.Type) input {
	if _, ok := t.FieldByName("Id"); ok && p.is(p.next, 0) {
		at := p.take(0)
		return func(_ *handles, values []uint64) (reflect.Value, nvml.Return) {
			v := reflect.New(t)
			v.Elem().FieldByName("Id").SetUint(uint64(uint32(values[at])))
			return v, nvml.SUCCESS
		}
	}
	at := p.take(t.Size())
	return func(_ *handles, values []uint64) (reflect.Value, nvml.Return) {
		return reflect.NewAt(t, pointer(values, at)), nvml.SUCCESS
	}
}

// output returns how a result of that type is written to where the next parameters point.
func (p *parameters) output(t reflect.Type) output {
	switch {
	case t.Kind() == reflect.String:
		at, length := p.take(1), p.take(0)
		return func(_ *handles, values []uint64, result reflect.Value) nvml.Return {
			return putText(pointer(values, at), uint32(values[length]), result.String())
		}
	case t.Kind() == reflect.Slice:
		return p.sliceOutput(t.Elem())
	}
	sizes := []uintptr{cType(t).Size()}
	if t.Kind() == reflect.Int || t.Kind() == reflect.Uint { // go-nvml's for C's int and long
		sizes = append(sizes, intSize)
	}
	at := p.take(sizes...)
	if p.bad {
		return nil
	}
	size := p.sizes[at]
	return func(h *handles, values []uint64, result reflect.Value) nvml.Return {
		return write(h, pointer(values, at), uintptr(size), result)
	}
}

// sliceOutput returns how a slice is written. Most functions take the number of elements first: how many there is room
// for, and how many there are. Those about instances take the array first, which is large enough or null.
func (p *parameters) sliceOutput(element reflect.Type) output {
	sizes := []uintptr{cType(element).Size()}
	if element == reflect.TypeFor[nvml.ProcessInfo]() {
		const first = 16 // of nvmlProcessInfo_v1_t: its two fields, with which the newer ones begin
		sizes = append(sizes, first)
	}
	if !p.is(p.next, intSize) {
		array, count := p.take(sizes...), p.take(intSize)
		if p.bad {
			return nil
		}
		size := uintptr(p.sizes[array])
		return func(h *handles, values []uint64, result reflect.Value) nvml.Return {
			if values[count] == 0 {
				return nvml.ERROR_INVALID_ARGUMENT
			}
			*(*uint32)(pointer(values, count)) = uint32(result.Len())
			return writeAll(h, pointer(values, array), size, result)
		}
	}
	count, array := p.take(intSize), p.take(sizes...)
	if p.bad {
		return nil
	}
	size := uintptr(p.sizes[array])
	return func(h *handles, values []uint64, result reflect.Value) nvml.Return {
		if values[count] == 0 {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		room := (*uint32)(pointer(values, count))
		fits := int(*room) >= result.Len() && (values[array] != 0 || result.Len() == 0)
		*room = uint32(result.Len())
		if !fits {
			return nvml.ERROR_INSUFFICIENT_SIZE
		}
		return writeAll(h, pointer(values, array), size, result)
	}
}

// pointer returns the value as the pointer that it is.
func pointer(values []uint64, at int) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&values[at]))
}

// isHandle says whether go-nvml has an interface for what C programs hold a handle of.
func isHandle(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[nvml.Device](), reflect.TypeFor[nvml.GpuInstance](), reflect.TypeFor[nvml.ComputeInstance](),
		reflect.TypeFor[nvml.EventSet](), reflect.TypeFor[nvml.Unit](), reflect.TypeFor[nvml.GpmSample]():
		return true
	}
	return false
}

func isNumber(t reflect.Type) bool { return t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64 }

// number returns the value as a number of that type. C's int and enums have 32 bits.
func number(t reflect.Type, value uint64) reflect.Value {
	v := reflect.New(t).Elem()
	switch {
	case v.CanUint():
		v.SetUint(value)
	case t.Kind() == reflect.Int64:
		v.SetInt(int64(value))
	default:
		v.SetInt(int64(int32(value)))
	}
	return v
}
