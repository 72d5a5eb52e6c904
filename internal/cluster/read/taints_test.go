// SPDX-License-Identifier: Apache-2.0

package read

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// cluster.Slices have the taints that DeviceTaintRules add, as in docs/operate/health.md for a cordon.
func TestReadTaintRules(t *testing.T) {
	slice := func(node string) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node},
			Spec: resourceapi.ResourceSliceSpec{Driver: "gpu.nvidia.com", Pool: resourceapi.ResourcePool{Name: node},
				Devices: []resourceapi.Device{{Name: "gpu-0"}, {Name: "gpu-1",
					Taints: []resourceapi.DeviceTaint{{Key: "own"}}}}}}
	}
	for _, row := range []struct {
		name     string
		selector *resourceapi.DeviceTaintSelector
		want     string
	}{
		{"no selector", nil, "a: [] [own] b: [] [own] "},
		{"all devices", &resourceapi.DeviceTaintSelector{}, "a: [rule] [own rule] b: [rule] [own rule] "},
		{"another driver", &resourceapi.DeviceTaintSelector{Driver: ptr.To("x")}, "a: [] [own] b: [] [own] "},
		{"a pool", &resourceapi.DeviceTaintSelector{Driver: ptr.To("gpu.nvidia.com"), Pool: ptr.To("b")},
			"a: [] [own] b: [rule] [own rule] "},
		{"a device", &resourceapi.DeviceTaintSelector{Pool: ptr.To("a"), Device: ptr.To("gpu-1")},
			"a: [] [own rule] b: [] [own] "},
	} {
		client := fake.NewClientset(slice("a"), slice("b"), &resourceapi.DeviceTaintRule{
			ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: row.selector, Taint: resourceapi.DeviceTaint{Key: "rule"}}})
		s := Reader{Client: client}.Read(t.Context(), cluster.Slices)
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, slice := range s.Slices {
			got += slice.Name + ": "
			for _, d := range slice.Spec.Devices {
				var keys []string
				for _, taint := range d.Taints {
					keys = append(keys, taint.Key)
				}
				got += fmt.Sprint(keys) + " "
			}
		}
		if got != row.want {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
	}
}
