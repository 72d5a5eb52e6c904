// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"reflect"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// delegate makes the library's functions about an NVML object (DeviceGetName(device)) call the object's method
// (device.GetName()). Without an object they return ERROR_INVALID_ARGUMENT.
//
// The list of setMethods is generated because reflection by name would keep the linker from removing unused methods:
// the plugin would be half as big again, also in memory. "go test ./simulator -run Delegates -update" writes it.
func delegate(m *mock.Interface) {
	setMethods(m)
	eachFunc(m, func(_ string, function reflect.Value) {
		t := function.Type()
		if function.IsNil() || t.NumIn() == 0 || t.In(0).Kind() != reflect.Interface {
			return
		}
		inner := reflect.ValueOf(function.Interface())
		function.Set(reflect.MakeFunc(t, func(args []reflect.Value) []reflect.Value {
			if args[0].IsNil() {
				return answer(t, nvml.ERROR_INVALID_ARGUMENT)
			}
			return inner.Call(args)
		}))
	})
}
