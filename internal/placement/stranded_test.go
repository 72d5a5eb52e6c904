// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"math"
	"slices"
	"testing"
	"time"
)

func TestStranded(t *testing.T) {
	half, whole, pair := Shape{4000, 0, 1, 500}, Shape{8000, 0, 1, Whole}, Shape{8000, 0, 2, Whole}
	for _, tc := range []struct {
		name   string
		cpu    int64
		idle   []int64
		shapes []Shape
		want   []int64
	}{
		{"nothing was requested", 64_000, []int64{1000, 300}, nil, []int64{1000, 300}},
		{"a rest that no share fits", 64_000, []int64{300, 500}, []Shape{half}, []int64{300, 0}},
		{"too little CPU", 3000, []int64{1000, 500}, []Shape{half, whole}, []int64{1000, 500}},
		{"CPU for a share only", 4000, []int64{1000, 500}, []Shape{half, whole}, []int64{0, 0}},
		{"one GPU, and only pairs are requested", 64_000, []int64{1000, 500}, []Shape{pair}, []int64{1000, 500}},
		{"two GPUs for pairs", 64_000, []int64{1000, 0, 1000}, []Shape{pair}, []int64{0, 0, 0}},
	} {
		n := Node{CPU: tc.cpu}
		for _, idle := range tc.idle {
			n.GPUs = append(n.GPUs, GPU{Idle: idle})
		}
		if got := Stranded(n, tc.shapes); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestShapeOf(t *testing.T) {
	pod := Pod{CPU: 2000, Memory: 512, Takes: []Take{{0, 200}, {0, 200}, {1, 300}}}
	if got, want := ShapeOf(pod), (Shape{2000, 512, 2, 400}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestShapesAreForgotten(t *testing.T) {
	s, start := Shapes{}, time.Unix(0, 0)
	s.See(Shape{CPU: 1}, start)
	for i := range maxShapes + 10 {
		s.See(Shape{int64(i), 0, 1, 1}, start.Add(time.Duration(i)*time.Second))
	}
	if len(s) != maxShapes {
		t.Errorf("got %d shapes, want %d", len(s), maxShapes)
	}
	last := start.Add((maxShapes + 9) * time.Second)
	if got := s.Since(last); len(got) != 1 || len(s) != 1 {
		t.Errorf("got %v and %d kept, want one", got, len(s))
	}
}

// Where CPU or host memory is scarce, the requests say how much of the idle GPUs is lost.
func TestStrandedWhereHostsAreScarce(t *testing.T) {
	one, four := Shape{8000, 64, 1, Whole}, Shape{32_000, 256, 4, Whole}
	third := Shape{1000, 8, 1, 300}
	for _, tc := range []struct {
		name        string
		cpu, memory int64
		idle        []int64
		shapes      []Usual
		want        float64 // GPUs without a host's part, plus those that whole pods leave
	}{
		{"enough of all", 16_000, 128, []int64{1000, 1000}, []Usual{{one, 1}}, 0},
		{"CPU for one and a half", 12_000, 128, []int64{1000, 1000}, []Usual{{one, 1}}, 0.5 + 1},
		{"memory for one and a half", 16_000, 96, []int64{1000, 1000}, []Usual{{one, 1}}, 0.5 + 1},
		{"nothing is idle but GPUs", 0, 0, []int64{1000, 1000}, []Usual{{one, 1}}, 2 + 2},
		{"more is promised than the host has", -8000, 128, []int64{1000}, []Usual{{one, 1}}, 1 + 1},
		{"too few GPUs for four", 64_000, 512, []int64{1000, 1000, 1000}, []Usual{{four, 1}}, 0 + 3},
		{"a rest of a GPU", 64_000, 512, []int64{1000}, []Usual{{third, 1}}, 0 + 0.1},
		{"the mean of what is requested", 64_000, 512, []int64{1000, 1000}, []Usual{{one, 0.75}, {four, 0.25}},
			0.25 * (0 + 2)},
	} {
		d := Demand{Scarcity: 1, Shapes: tc.shapes}
		if got := d.stranded(tc.cpu, tc.memory, tc.idle); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
	mixed := Demand{CPUPerGPU: 10, Scarcity: 0.5, Shapes: []Usual{{one, 1}}}
	simple := Demand{CPUPerGPU: 10}
	got, want := mixed.stranded(4000, 64, []int64{1000}), (simple.stranded(4000, 64, []int64{1000})+0.5+1)/2
	if math.Abs(got-want) > 1e-9 {
		t.Errorf("half scarce: got %v, want %v, half of each measure", got, want)
	}
}
