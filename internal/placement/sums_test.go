// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"
)

// eight GPUs: four of A, two of B and two of C.
func eight() *Sums {
	var s Sums
	for _, model := range []string{"A", "A", "A", "A", "B", "B", "C", "C"} {
		s.AddGPU(model)
	}
	return &s
}

func TestDemand(t *testing.T) {
	for _, row := range []struct {
		name string
		pods []Request
		want Demand
	}{
		{"no pods", nil, Demand{}},
		{"a pod without GPUs does not count", []Request{{CPU: 8000}, {CPU: 5000, Amount: 1000}},
			Demand{CPUPerGPU: 5, Pressure: map[string]float64{}}},
		{"CPU for a GPU, over all pods", []Request{{CPU: 8000, Amount: 2000}, {CPU: 4000, Amount: 400}},
			Demand{CPUPerGPU: 5, Pressure: map[string]float64{}}},
		{"half of the requests name a quarter of the GPUs: all of these, if the cluster is full",
			[]Request{{Amount: 1000}, {Amount: 1000, Models: []string{"B"}}},
			Demand{Pressure: map[string]float64{"B": 1}}},
		{"a quarter names half of the GPUs", []Request{{Amount: 3000}, {Amount: 1000, Models: []string{"A"}}},
			Demand{Pressure: map[string]float64{"A": 0.5}}},
		{"models of one pod share its request, in any order", []Request{{Amount: 5000},
			{Amount: 1000, Models: []string{"A", "B"}}, {Amount: 2000, Models: []string{"B", "A"}}},
			Demand{Pressure: map[string]float64{"A": 0.5, "B": 0.5}}},
		{"pressure adds up", []Request{{Amount: 5000},
			{Amount: 1000, Models: []string{"B"}}, {Amount: 2000, Models: []string{"B", "A", "C"}}},
			Demand{Pressure: map[string]float64{"A": 0.25, "B": 0.75, "C": 0.25}}},
		{"a model that the cluster lacks", []Request{{Amount: 1000, Models: []string{"D"}}},
			Demand{Pressure: map[string]float64{}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := eight()
			for _, p := range row.pods {
				s.Add(p)
			}
			if got := s.Demand(); !reflect.DeepEqual(got, row.want) {
				t.Errorf("got %+v, want %+v", got, row.want)
			}
		})
	}
}

func TestSumsForgetWhatIsRemoved(t *testing.T) {
	s := eight()
	kept := Request{CPU: 3000, Amount: 700, Models: []string{"C"}}
	s.Add(kept)
	want := s.Demand()
	gone := []Request{{CPU: 1, Amount: 333}, {CPU: 9000, Amount: 1000, Models: []string{"A", "B"}}, {CPU: 100}, kept}
	for _, p := range gone {
		s.Add(p)
	}
	s.AddGPU("D")
	if got := s.Demand(); reflect.DeepEqual(got, want) {
		t.Fatalf("what was added does not count: %+v", got)
	}
	s.RemoveGPU("D")
	for _, p := range gone {
		p.Models = slices.Clone(p.Models)
		slices.Reverse(p.Models) // order has no meaning
		s.Remove(p)
	}
	if got := s.Demand(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v as before", got, want)
	}
	if got := slices.Sorted(maps.Keys(s.gpus)); !slices.Equal(got, []string{"A", "B", "C"}) || len(s.named) != 1 {
		t.Errorf("got the models %v and %d lists of models: what is gone takes memory", got, len(s.named))
	}
}

// Nodes with GPUs have 10 cores and 100 MiB for each.
func TestScarcity(t *testing.T) {
	middle := (enough + tooLittle) / 2
	for _, row := range []struct {
		name        string
		cpu, memory float64 // requested for a GPU
		want        float64
	}{
		{"enough", enough * 10_000, 0, 0},
		{"between", middle * 10_000, 10, 0.5},
		{"too little CPU", tooLittle * 10_000, 10, 1},
		{"too little memory", 10, tooLittle * 100, 1},
		{"more than there is", 20_000, 10, 1},
	} {
		var s Sums
		s.Add(Request{CPU: int64(100 * row.cpu), Memory: int64(100 * row.memory), GPUs: 1, Amount: 100 * Whole})
		if got := s.Demand().Scarcity; got != 0 {
			t.Errorf("%s: got %v while no node is known, want 0", row.name, got)
		}
		s.Supply = Supply{CPU: 40_000, Memory: 400, Amount: 4 * Whole}
		if got := s.Demand().Scarcity; math.Abs(got-row.want) > 0.01 {
			t.Errorf("%s: got %v, want %v", row.name, got, row.want)
		}
	}
}

func TestUsualShapes(t *testing.T) {
	s := Sums{Supply: Supply{CPU: 1, Memory: 1, Amount: Whole}} // too little
	for i := range maxUsual + 5 {
		s.Add(Request{CPU: int64(i + 1), GPUs: 1, Amount: 10})
	}
	big := Request{CPU: 5, Memory: 7, GPUs: 2, Amount: 2 * Whole}
	s.Add(big)
	s.Add(Request{CPU: 1000, Amount: 9 * Whole}) // not a pod
	got, sum := s.Demand().Shapes, 0.0
	for _, u := range got {
		sum += u.Share
	}
	if len(got) != maxUsual || got[0].Shape != (Shape{5, 7, 2, Whole}) || math.Abs(sum-1) > 1e-9 {
		t.Errorf("got %d shapes, %+v, shares of %v; want the largest first, and shares of 1", len(got), got[0], sum)
	}
	s.Remove(big)
	if got := s.Demand().Shapes[0].Shape; got != (Shape{1, 0, 1, 10}) {
		t.Errorf("got %+v, want the first of equals without the pod that is gone", got)
	}
}
