// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/why"
)

// A pod that waits for a resource of a family is told the label with which it is converted.
func TestWhyKnowsTheResourcesOfFamilies(t *testing.T) {
	for _, f := range families {
		for _, name := range f.Resources {
			if name == wholeGPU {
				continue
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
			pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{name: resource.MustParse("1")}}}}
			s := &cluster.Snapshot{Unread: map[string]error{}, Pods: []*corev1.Pod{pod},
				Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.NodeStatus{
					Allocatable: corev1.ResourceList{"pods": resource.MustParse("110")}}}}}
			r, err := why.Pod(t.Context(), s, "ns", "p")
			if want := string(name) + " is a resource of "; err != nil || !strings.Contains(r.Cause, want) ||
				!strings.Contains(r.Cause, "gpu.nvidia.com/convert=on") {
				t.Errorf("%s of %s: got %q, %v, want in it %q and the label", name, f.Name, r.Cause, err, want)
			}
		}
	}
}
