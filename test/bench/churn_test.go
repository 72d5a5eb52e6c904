// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestSlope(t *testing.T) {
	for _, row := range []struct {
		name   string
		values []float64
		want   float64
	}{
		{"flat", []float64{5, 5, 5}, 0},
		{"a line", []float64{1, 3, 5, 7}, 2},
		{"a line downwards", []float64{4, 3, 2}, -1},
		{"up and down", []float64{0, 2, 0, 2, 0}, 0},
	} {
		if got := slope(row.values); got != row.want {
			t.Errorf("%s: got %v, want %v", row.name, got, row.want)
		}
	}
}
