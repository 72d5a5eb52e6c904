// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// What a node with 4 CPUs and 8 GiB lacks for pods with GPUs.
func TestShort(t *testing.T) {
	amounts := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
	}
	for _, tc := range []struct {
		name        string
		cpu, memory string // that a pod requests
		cordoned    bool
		want        string
	}{
		{"a pod leaves enough", "3", "7Gi", false, ""},
		{"less than a CPU is left", "3100m", "1Gi", false, "cpu"},
		{"less than 1 GiB is left", "1", "7169Mi", false, "memory"},
		{"the node is cordoned", "1", "1Gi", true, "cordoned"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := newUsage(cluster.New(clustertest.Driver), time.Now, func(string) {})
			node, _ := summarize(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"},
				Spec:   corev1.NodeSpec{Unschedulable: tc.cordoned},
				Status: corev1.NodeStatus{Allocatable: amounts("4", "8Gi")}})
			u.setNode(node.(*nodeSummary))
			pod, _ := summarize(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: types.UID("p")},
				Spec: corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{
					Resources: corev1.ResourceRequirements{Requests: amounts(tc.cpu, tc.memory)}}}}})
			u.setPod(pod.(*podSummary))
			if got := u.short("a"); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			u.deletePod(pod.(*podSummary))
			if got := u.short("a"); got != "" && !tc.cordoned {
				t.Errorf("got %q after the pod, want nothing", got)
			}
			if got := u.short("unknown"); got != "" {
				t.Errorf("got %q of a node that is not known", got)
			}
			x := newExtender(cluster.New(clustertest.Driver), func() error { return nil }, 0, time.Now)
			if got := x.short("a"); got != "" {
				t.Errorf("got %q before a scheduler has asked, want nothing", got)
			}
		})
	}
}
