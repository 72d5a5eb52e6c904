// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// using returns a pod on the node, which has the claims pod-NAME of newCluster.
func using(name, node, cpus string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpus)}}}}
	return p
}

// Node a has two T4, with shares of 5 and 6 GiB of one. Node b has eight H100, with one claim for all of one and one
// for a partition of another.
func TestLsStranded(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(s *apiServer)
		args   string
		want   string // names of GPUs, and why
		err    string
	}{
		{"there is room for each", nil, "", "", ""},
		{"the rest of a GPU is smaller than each share", func(s *apiServer) {
			s.Claims = s.Claims[:2] // of a
		}, "a", "a/gpu-3b-00-0 26%: no pod has so small a share", ""},
		{"a node without idle CPU", func(s *apiServer) { s.Pods = append(s.Pods, using("web", "a", "57500m")) }, "a",
			"a/gpu-3b-00-0 26%: the node has 0.5 idle CPUs\na/gpu-af-00-0 100%: the node has 0.5 idle CPUs", ""},
		{"a pod that has ended needs none", func(s *apiServer) {
			s.Pods = append(s.Pods, using("web", "a", "57500m"))
			s.Pods[len(s.Pods)-1].Status.Phase = corev1.PodSucceeded
		}, "a", "", ""},
		{"a node that takes no pods", func(s *apiServer) {
			s.Pods = append(s.Pods, using("web", "a", "57500m"))
			s.Nodes[0].Spec.Unschedulable = true
		}, "a", "", ""},
		{"a tainted GPU", func(s *apiServer) {
			s.Pods = append(s.Pods, using("web", "a", "57500m"))
			s.device(t, "a", "gpu-af-00-0").Taints = []resourceapi.DeviceTaint{{Key: "sick",
				Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}, "a", "a/gpu-3b-00-0 26%: the node has 0.5 idle CPUs", ""},
		{"pods that need two GPUs", func(s *apiServer) {
			s.Claims = []*resourceapi.ResourceClaim{claim("first", "a", "gpu-3b-00-0", "memory=15Gi"),
				claim("second", "b", "gpu-1b-00-0", "memory=81559Mi"),
				claim("third", "b", "gpu-43-00-0", "memory=81559Mi")}
			for _, c := range s.Claims {
				c.Status.ReservedFor[0].Name = "pod-whole"
			}
		}, "a", "a/gpu-af-00-0 100%: the node has too few idle GPUs", ""},
		{"no right to read pods", func(s *apiServer) { s.forbidden = []string{"/api/v1/pods"} }, "", "",
			"--stranded needs all claims, nodes and pods of the cluster\nread pods: "},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newCluster(t)
			for _, n := range s.Nodes {
				n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64")}
			}
			s.Pods = []*corev1.Pod{using("pod-train", "a", "2"), using("pod-serve", "a", "4"),
				using("pod-whole", "b", "8"), using("pod-small", "b", "1")}
			if row.change != nil {
				row.change(s)
			}
			out, _, err := s.run(t, append([]string{"ls", "--stranded", "--no-headers"},
				strings.Fields(row.args)...)...)
			if (err != nil) != (row.err != "") || err != nil && !strings.Contains(err.Error(), row.err) {
				t.Errorf("got error %v, want %q", err, row.err)
			}
			var got []string
			for line := range strings.Lines(squeezed(out)) {
				words := strings.Fields(line)
				percent := strings.LastIndex(line[:strings.Index(line, ": ")], " ") + 1 // the last column begins there
				got = append(got, words[0]+"/"+words[1]+" "+line[percent:])
			}
			if got := strings.TrimSpace(strings.Join(got, "")); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}
