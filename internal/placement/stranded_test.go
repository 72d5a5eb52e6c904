// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"
	"testing"
	"time"
)

func TestStranded(t *testing.T) {
	half, whole, pair := Shape{4000, 1, 500}, Shape{8000, 1, Whole}, Shape{8000, 2, Whole}
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
	pod := Pod{CPU: 2000, Takes: []Take{{0, 200}, {0, 200}, {1, 300}}}
	if got, want := ShapeOf(pod), (Shape{2000, 2, 400}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestShapesAreForgotten(t *testing.T) {
	s, start := Shapes{}, time.Unix(0, 0)
	s.See(Shape{CPU: 1}, start)
	for i := range maxShapes + 10 {
		s.See(Shape{int64(i), 1, 1}, start.Add(time.Duration(i)*time.Second))
	}
	if len(s) != maxShapes {
		t.Errorf("got %d shapes, want %d", len(s), maxShapes)
	}
	last := start.Add((maxShapes + 9) * time.Second)
	if got := s.Since(last); len(got) != 1 || len(s) != 1 {
		t.Errorf("got %v and %d kept, want one", got, len(s))
	}
}
