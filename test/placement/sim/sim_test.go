// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"reflect"
	"testing"

	"github.com/gpudra/gpu-dra-driver/internal/placement"
	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

var twoNodes = trace.Trace{
	Nodes: []trace.Node{{Name: "a", CPU: 16_000, Memory: 1000, GPUs: 3, Model: "A"},
		{Name: "b", CPU: 8_000, Memory: 1000, GPUs: 1, Model: "B"}},
	Pods: []trace.Pod{{CPU: 1000, Memory: 10, GPUs: 1, Amount: 400}},
}

func TestFit(t *testing.T) {
	c := newCluster(twoNodes, Default, 1)
	c.nodes[0].GPUs[0].Idle = 400
	for _, row := range []struct {
		name string
		node int
		pod  trace.Pod
		want []placement.Take
		fits bool
	}{
		{"the first GPU", 0, trace.Pod{GPUs: 1, Amount: 400}, []placement.Take{{GPU: 0, Amount: 400}}, true},
		{"the first that is idle enough", 0, trace.Pod{GPUs: 1, Amount: 500},
			[]placement.Take{{GPU: 1, Amount: 500}}, true},
		{"several", 0, trace.Pod{GPUs: 2, Amount: 1000},
			[]placement.Take{{GPU: 1, Amount: 1000}, {GPU: 2, Amount: 1000}}, true},
		{"too few GPUs are idle", 0, trace.Pod{GPUs: 3, Amount: 1000}, nil, false},
		{"the model is not accepted", 0, trace.Pod{GPUs: 1, Amount: 400, Models: []string{"B"}}, nil, false},
		{"too little CPU", 1, trace.Pod{CPU: 8001}, nil, false},
		{"too little memory", 1, trace.Pod{Memory: 1001}, nil, false},
		{"a pod without GPUs", 1, trace.Pod{CPU: 8000, Memory: 1000}, nil, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, fits := c.fit(row.node, row.pod)
			if !reflect.DeepEqual(got, row.want) || fits != row.fits {
				t.Errorf("got %v, %v, want %v, %v", got, fits, row.want, row.fits)
			}
		})
	}
}

// TestKeptScores: a score that is kept is the one that would be computed.
func TestKeptScores(t *testing.T) {
	c := newCluster(twoNodes, Pack, 1)
	var all []placed
	for _, v := range trace.Generate(1, 20).Pods[:60] {
		v.Models, v.Memory = nil, 1
		c.arrive(v)
		if at, ok := c.place(v); ok {
			all = append(all, at)
		}
		for i, k := range c.shape(v) {
			if k.version == c.version[i] && k.epoch == c.epoch && k.score != c.score(i, v) {
				t.Fatalf("node %d: kept %v, computed %v", i, k.score, c.score(i, v))
			}
		}
	}
	if len(all) < 3 {
		t.Fatalf("%d pods were placed; this test needs some", len(all))
	}
	for _, p := range all {
		c.remove(p)
	}
	if want := newCluster(twoNodes, Default, 1); !reflect.DeepEqual(c.nodes, want.nodes) {
		t.Errorf("after all pods have left: got %+v, want %+v", c.nodes, want.nodes)
	}
}

// One pod of a small cluster may be so much that no arrival makes it 100 % or 130 %.
func TestFillOfASmallCluster(t *testing.T) {
	small := twoNodes
	small.Pods = []trace.Pod{{CPU: 1000, Memory: 10, GPUs: 3, Amount: 1000}}
	if at100, at130 := Fill(small, Pack, 1); at100 != 75 || at130 != 75 {
		t.Errorf("got %v %% and %v %%, want 75 %%: one of two pods with three of four GPUs", at100, at130)
	}
}
