// SPDX-License-Identifier: Apache-2.0

package libnvml

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/simulator"
)

// TestNVIDIAAnswers compares each answer that go-nvml gets through the library with that of the simulation itself.
func TestNVIDIAAnswers(t *testing.T) {
	for _, profile := range simulator.Profiles() {
		t.Run(profile, func(t *testing.T) {
			n := simulate(t, builtIn(t, profile, ""))
			want, got := initialized(t, n.NVML()), load(t)
			answered := compare(t, "library", reflect.TypeFor[nvml.Interface](), got, want, "System", "DeviceGetCount")
			count, _ := want.DeviceGetCount()
			for i := range count {
				wantDevice, _ := want.DeviceGetHandleByIndex(i)
				gotDevice, ret := got.DeviceGetHandleByIndex(i)
				if ret != nvml.SUCCESS {
					t.Fatal(ret)
				}
				answered += compare(t, fmt.Sprint("GPU ", i), reflect.TypeFor[nvml.Device](), gotDevice, wantDevice,
					"Get", "Is")
			}
			if answered < 20*count {
				t.Errorf("got %d answers, want at least 20 of each GPU", answered)
			}
		})
	}
}

// compare calls every method of two objects whose name has one of the prefixes. Each parameter is a small number. It
// returns how many succeed.
func compare(t *testing.T, name string, of reflect.Type, got, want any, prefixes ...string) int {
	t.Helper()
	succeeded := 0
	for m := range of.Methods() {
		if !hasPrefix(m.Name, prefixes) || !callable(m.Type) || m.Name == "GetMemoryAffinity" {
			continue // C takes the size of the set in words of 64 nodes, so that small numbers make no difference
		}
		for argument := range 3 {
			var args []reflect.Value
			for i := range m.Type.NumIn() {
				args = append(args, reflect.ValueOf(argument).Convert(m.Type.In(i)))
			}
			g := describe(reflect.ValueOf(got).MethodByName(m.Name).Call(args))
			w := describe(reflect.ValueOf(want).MethodByName(m.Name).Call(args))
			if g != w {
				t.Errorf("%s: %s(%d): got %s, want %s", name, m.Name, argument, g, w)
			}
			if strings.HasSuffix(w, "SUCCESS") {
				succeeded++
			}
			if len(args) == 0 {
				break
			}
		}
	}
	return succeeded
}

func hasPrefix(name string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// callable says whether the method takes numbers only and returns an error code.
func callable(t reflect.Type) bool {
	for i := range t.NumIn() {
		if k := t.In(i).Kind(); k < reflect.Int || k > reflect.Uint64 {
			return false
		}
	}
	return t.NumOut() > 1 && t.Out(t.NumOut()-1) == reflect.TypeFor[nvml.Return]()
}

// describe returns the results as text, or the error code alone.
func describe(results []reflect.Value) string {
	ret := results[len(results)-1].Interface().(nvml.Return)
	if ret != nvml.SUCCESS {
		return fmt.Sprint(int(ret))
	}
	var b strings.Builder
	for _, r := range results[:len(results)-1] {
		if d, ok := r.Interface().(nvml.Device); ok {
			uuid, ret := d.GetUUID()
			fmt.Fprint(&b, uuid, ret, " ")
			continue
		}
		fmt.Fprintf(&b, "%+v ", r.Interface())
	}
	return b.String() + "SUCCESS"
}
