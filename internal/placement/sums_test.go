// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"maps"
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
