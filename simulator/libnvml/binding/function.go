// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"reflect"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// function calls a method of NVML with the values of a C call.
type function struct {
	// object is the interface whose method is called: that of the first parameter, nil for the library itself.
	object reflect.Type
	method string
	in     []input
	out    []output
	count  int
	frees  bool // whether the object is gone afterwards
}

// input converts values of a C call to an argument of the method.
type input func(h *handles, values []uint64) (reflect.Value, nvml.Return)

// output writes a result of the method to where pointers of a C call point.
type output func(h *handles, values []uint64, result reflect.Value) nvml.Return

// newFunction returns the function for a method of nvml.Interface, or nil if its parameters are not those of C.
func newFunction(m reflect.Method, sizes []uint32) *function {
	f := &function{method: m.Name, frees: m.Name == "EventSetFree"}
	p := &parameters{sizes: sizes}
	for i := range m.Type.NumIn() {
		t := m.Type.In(i)
		if i == 0 && isHandle(t) {
			f.object = t
		}
		f.in = append(f.in, p.input(t))
	}
	results := m.Type.NumOut() - 1
	if results < 0 || m.Type.Out(results) != reflect.TypeFor[nvml.Return]() {
		return nil
	}
	for i := range results {
		f.out = append(f.out, p.output(m.Type.Out(i)))
	}
	if p.bad || p.next != len(sizes) {
		return nil
	}
	f.count = len(sizes)
	if f.object != nil {
		f.method = objectMethod(f.object, m.Name)
	}
	return f
}

// objectMethod returns the method of the object that a method of the library stands for: GetName for DeviceGetName,
// GpmSampleGet for itself.
func objectMethod(object reflect.Type, name string) string {
	for _, prefix := range []string{"Device", "GpuInstance", "ComputeInstance", "EventSet", "Unit", "GpmSample"} {
		if short, ok := strings.CutPrefix(name, prefix); ok {
			if _, found := object.MethodByName(short); found {
				return short
			}
		}
	}
	return name
}

func (f *function) call(h *handles, lib nvml.Interface, values []uint64) nvml.Return {
	if len(values) < f.count {
		return nvml.ERROR_NOT_SUPPORTED
	}
	var args []reflect.Value
	for _, in := range f.in {
		v, ret := in(h, values)
		if ret != nvml.SUCCESS {
			return ret
		}
		args = append(args, v)
	}
	receiver := reflect.ValueOf(lib)
	if f.object != nil {
		receiver, args = args[0], args[1:]
	}
	results := receiver.MethodByName(f.method).Call(args)
	if ret := nvml.Return(results[len(results)-1].Int()); ret != nvml.SUCCESS {
		return ret
	}
	for i, out := range f.out {
		if ret := out(h, values, results[i]); ret != nvml.SUCCESS {
			return ret
		}
	}
	if f.frees {
		h.drop(values[0])
	}
	return nvml.SUCCESS
}
