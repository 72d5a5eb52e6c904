// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"testing"
)

func TestASampleHasTheSameProportions(t *testing.T) {
	var nodes []Node
	for i := range 100 {
		n := Node{Name: fmt.Sprint(i), GPUs: 2, Model: "T4"}
		if i%4 == 0 {
			n = Node{Name: fmt.Sprint(i), GPUs: 8, Model: "A100"}
		}
		nodes = append(nodes, n)
	}
	for count, want := range map[int]string{0: "25 of 100", 12: "3 of 12", 40: "10 of 40", 500: "25 of 100"} {
		some := Trace{Nodes: nodes}.Sample(count).Nodes
		large, seen := 0, map[string]bool{}
		for _, n := range some {
			if seen[n.Name] {
				t.Errorf("node %s is twice in a sample of %d", n.Name, count)
			}
			seen[n.Name] = true
			if n.GPUs == 8 {
				large++
			}
		}
		if got := fmt.Sprintf("%d of %d", large, len(some)); got != want {
			t.Errorf("a sample of %d: got %s, want %s", count, got, want)
		}
	}
}

func TestScale(t *testing.T) {
	all := Trace{Nodes: []Node{{Name: "a", CPU: 96_000, Memory: 1001, GPUs: 8, Model: "A"}}}
	got := all.Scale(0.8, 0.5).Nodes[0]
	if want := (Node{Name: "a", CPU: 76_800, Memory: 500, GPUs: 8, Model: "A"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if all.Nodes[0].CPU != 96_000 {
		t.Errorf("the trace itself has changed: %+v", all.Nodes[0])
	}
}
