// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
)

func TestDelegatesMatchGoNVML(t *testing.T) {
	text, err := os.ReadFile("delegate.go")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	s, err := server.New()
	if err != nil {
		t.Fatal(err)
	}
	eachFunc(&s.Interface, func(call string, function reflect.Value) {
		f := function.Type()
		if !function.IsNil() || f.NumIn() == 0 || f.In(0).Kind() != reflect.Interface {
			return
		}
		method, ok := methodFor(f.In(0), call)
		if !ok || method.Type.NumIn() != f.NumIn()-1 || method.Type.NumOut() != f.NumOut() {
			return
		}
		want := fmt.Sprintf("\tm.%sFunc = nvml.%s.%s", call, f.In(0).Name(), method.Name)
		if !slices.Contains(lines, want) {
			t.Errorf("delegate.go lacks the line\n%s", want)
		}
	})
}

// methodFor finds the method that a call of the library stands for: DeviceGetName is GetName, GpmSampleGet is itself.
func methodFor(object reflect.Type, call string) (reflect.Method, bool) {
	for _, prefix := range []string{"Device", "GpuInstance", "ComputeInstance", "EventSet", "Unit", "VgpuInstance",
		"VgpuType", "GpmSample", ""} {
		if name, ok := strings.CutPrefix(call, prefix); ok {
			if m, found := object.MethodByName(name); found {
				return m, true
			}
		}
	}
	return reflect.Method{}, false
}
