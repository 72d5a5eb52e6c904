// SPDX-License-Identifier: Apache-2.0

package why

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// TestRemote: GPUs over the network are explained as others, on the nodes that may use them.
func TestRemote(t *testing.T) {
	const name, label = "remote.gpu.nvidia.com", "gpu.nvidia.com/remote-client"
	asked := requests("[{name: gpu, exactly: {deviceClassName: " + name + "}}]")
	for _, row := range []struct {
		name   string
		value  string // of the node's label
		holder string
		taint  string
		want   string
	}{
		{"free, on a node that may use it", "true", "", "", "claim c fits now on 1 of 1 nodes"},
		{"the node may not", "false", "", "", "no node has a device of class remote.gpu.nvidia.com; server pods " +
			"offer GPUs over the network to nodes with the label gpu.nvidia.com/remote-client=true"},
		{"another claim has it", "true", asked, "",
			"the 1 device of class remote.gpu.nvidia.com are held by other claims"},
		{"its server is lost", "true", "", name + "/server-lost", "each of the 1 device of class " +
			"remote.gpu.nvidia.com has the taint remote.gpu.nvidia.com/server-lost:NoExecute"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
			s.Nodes[0].Labels = map[string]string{label: row.value}
			s.Classes = append(s.Classes, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
					CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + name + "'"}}}}})
			size := resource.MustParse("80Gi")
			d := resourceapi.Device{Name: "server", AllowMultipleAllocations: ptr.To(true),
				BindingConditions: []string{"SessionReady"}, BindingFailureConditions: []string{"ServerLost"},
				Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: size,
					RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &size}}}}
			if row.taint != "" {
				d.Taints = []resourceapi.DeviceTaint{{Key: row.taint, Effect: resourceapi.DeviceTaintEffectNoExecute}}
			}
			s.Slices = append(s.Slices, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "remote"},
				Spec: resourceapi.ResourceSliceSpec{Driver: name, Devices: []resourceapi.Device{d},
					Pool: resourceapi.ResourcePool{Name: "remote", ResourceSliceCount: 1},
					NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchExpressions: []corev1.NodeSelectorRequirement{{Key: label,
							Operator: corev1.NodeSelectorOpIn, Values: []string{"true"}}}}}}}})
			if row.holder != "" {
				mustHold(t, s, claim(t, "h", row.holder))
			}
			s.Claims = append(s.Claims, claim(t, "c", asked))
			r, err := Claim(t.Context(), s, "ns", "c")
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimPrefix(r.Cause, "claim c waits: request gpu of claim c: "); got != row.want {
				t.Errorf("got %q\nwant %q", got, row.want)
			}
			if slices.ContainsFunc(r.Change, func(c advice.Change) bool { return c.Kind == advice.Tolerate }) {
				t.Errorf("got %v, want no toleration of a lost server", r.Change)
			}
		})
	}
}
