// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

var twoNodes = trace.Trace{
	Nodes: []trace.Node{{Name: "a", CPU: 16_000, Memory: 1000, GPUs: 3, Model: "A"},
		{Name: "b", CPU: 8_000, Memory: 1000, GPUs: 1, Model: "B"}},
	Pods: []trace.Pod{{CPU: 1000, Memory: 10, GPUs: 1, Amount: 400}},
}

func TestPackIsBetterThanTheDefaultScores(t *testing.T) {
	g := trace.Generate(1, 60)
	for seed := range uint64(3) {
		base, ours := run(g, policies[0], seed, 30_000), run(g, policies[len(policies)-1], seed, 30_000)
		for i, name := range []string{"fill, 100 %", "fill, 130 %", "churn, 0.95", "churn, 1.1"} {
			if ours[i] <= base[i] || ours[i] > 100 || base[i] < 50 {
				t.Errorf("seed %d, %s: %.2f by default and %.2f with pack", seed, name, base[i], ours[i])
			}
		}
	}
}

func TestTable(t *testing.T) {
	traces := []trace.Trace{twoNodes, twoNodes}
	traces[0].Name, traces[1].Name = "default", "mine"
	got := table(traces, 1, 2, 3000)
	if got != table(traces, 1, 2, 3000) {
		t.Error("the same seeds give another table")
	}
	const paper = "| default | FGD, the paper's figure | | 95.39 | | |\n"
	if strings.Count(got, paper) != 1 || strings.Contains(got, "| mine | FGD") {
		t.Errorf("the paper's figure must stand beside its trace only:\n%s", got)
	}
	if rows := strings.Count(got, " ± "); rows != len(traces)*len(policies)*columns {
		t.Errorf("got %d results:\n%s", rows, got)
	}
}
