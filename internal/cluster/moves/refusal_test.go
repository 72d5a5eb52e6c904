// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Nobody is evicted for a pod that would not start then.
func TestNobodyEndsForAPodThatDoesNotStart(t *testing.T) {
	for _, row := range []struct {
		name string
		pod  func(*corev1.Pod) *corev1.Pod
		want string // the node; "": none
	}{
		{"a pod that starts on both", func(p *corev1.Pod) *corev1.Pod { return p }, "mps"},
		{"a pod that one node refuses", hostMemory, "free"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := twoIsolations(t)
			for i, node := range []string{"free", "free", "mps", "mps"} {
				name, minutes := node+"-"+string(rune('a'+i)), 10
				if node == "free" {
					minutes = 500 // they have more to lose
				}
				held := claim(t, name, gpus(", capacity: {requests: {memory: 15Gi}}"))
				if !holdOn(t, s, node, wholeGPUs(s, node)[i%2], held) {
					t.Fatalf("%s has no room", node)
				}
				s.Pods = append(s.Pods, podOn(node, name, 1, "1", minutes, held))
			}
			own := claim(t, "own", gpus(", capacity: {requests: {memory: 5Gi, cores: 30}}"))
			p := row.pod(podOn("", "own", 5, "1", 0, own))
			p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "own"}}
			s.Claims, s.Pods = append(s.Claims, own), append(s.Pods, p)
			plan, err := Preempt(t.Context(), s, p, PreemptOptions{Now: now})
			if err != nil || plan == nil || plan.Node != row.want || len(plan.Victims) != 1 {
				t.Errorf("got %+v, %v; want one victim on %s", plan, err, row.want)
			}
		})
	}
}

// Defragmentation moves no pod to a node that would refuse it.
func TestDefragMovesNothingToANodeThatRefuses(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		s := twoIsolations(t)
		if !run(t, s, "a", "ReplicaSet", "free/0 5Gi") || !run(t, s, "b", "ReplicaSet", "mps/0 5Gi") {
			t.Fatal("no room")
		}
		p := s.Pods[0]
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "a-0"}}
		if refuses {
			hostMemory(p)
		}
		plan, err := Defrag(t.Context(), s, DefragOptions{Drivers: []string{driver}, Node: "free"})
		if err != nil || (len(plan.Frees) == 0) != refuses {
			t.Errorf("the other node refuses the pod: %t: got %+v, %v", refuses, plan, err)
		}
	}
}
