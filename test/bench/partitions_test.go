// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"testing"
)

// Runs the rows that need no cluster. It does not check their times.
func TestMeasurePartitions(t *testing.T) {
	t.Chdir("../..")
	b := &bench{results: map[string][]float64{}}
	if err := measurePartitions(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(len(b.results["partition"]), len(b.results["partitionways"]),
		b.results["partslices"]); got != "1 2 [7]" {
		t.Errorf("got values %s, want 1 2 [7]", got)
	}
}

// With random requests, the published order serves more than the ascending order, summed over the mixes.
func TestThePublishedOrderLeavesRoom(t *testing.T) {
	for _, gpus := range []int{1, 8} {
		inv, err := partitionable("../../"+migTables, gpus)
		if err != nil {
			t.Fatal(err)
		}
		ours := published(inv)
		shares := mean(compare(ours, ours, gpus))
		if shares[0] <= shares[1] {
			t.Errorf("%d GPUs: got %.2f %% served, ascending %.2f %%", gpus, shares[0], shares[1])
		}
	}
}

func TestServed(t *testing.T) {
	places := sites{{{0, 1}, {0, 2}}, {{0, 3}}} // a small one has two places, a large one both
	for _, row := range []struct {
		name    string
		demands []demand
		want    float64
	}{
		{"each finds a place", []demand{{0, 9, 0}, {1, 9, 0}}, 1},
		{"the third does not", []demand{{0, 9, 0}, {1, 9, 0}, {2, 9, 0}, {3, 9, 0}}, 0.5},
		{"a large one does not wait", []demand{{0, 9, 0}, {1, 9, 1}}, 0.5},
		{"a large one is served after the small one", []demand{{0, 1, 0}, {1, 9, 1}}, 1},
	} {
		if got := served(row.demands, places, 1); got != row.want {
			t.Errorf("%s: got %v, want %v", row.name, got, row.want)
		}
	}
}

func TestOrders(t *testing.T) {
	inv, err := partitionable("../../"+migTables, 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(orders(published(inv))); got != 60480 {
		t.Errorf("got %d orders, want 60480", got)
	}
}
