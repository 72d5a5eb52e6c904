// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"
)

func TestPercentiles(t *testing.T) {
	var s samples
	for i := range 100 {
		s = append(s, time.Duration(100-i)*time.Millisecond) // 1 ms to 100 ms
	}
	for _, row := range []struct {
		q    float64
		want float64
	}{{0, 1}, {0.5, 51}, {0.99, 100}, {1, 100}} {
		if got := s.at(row.q); got != row.want {
			t.Errorf("at %v: got %v ms, want %v", row.q, got, row.want)
		}
	}
	if got := (samples{}).p50(); got != 0 {
		t.Errorf("of nothing: got %v", got)
	}
}

func TestFigures(t *testing.T) {
	for _, row := range []struct {
		values []float64
		want   string
	}{
		{[]float64{1.2345}, "1.23"},
		{[]float64{2, 6}, "2 / 6"},
		{[]float64{12.345, 127.8}, "12.3 / 128"},
		{[]float64{0.5, -0.25, -123.4}, "0.5 / -0.25 / -123"},
		{[]float64{100, 40}, "100 / 40"},
	} {
		if got := formatValues(row.values); got != row.want {
			t.Errorf("%v: got %q, want %q", row.values, got, row.want)
		}
	}
}

func TestReport(t *testing.T) {
	b := &bench{results: map[string][]float64{
		"prepare": {1.9, 7}, "get": {1}, "prepare200": {2}, "backtoback": {1.8}, "unprepare": {1.5},
	}}
	got := b.report("On a machine.")
	for _, want := range []string{
		"On a machine.\n\n| what |",
		"| NodePrepareResources, one GPU, p50 / p99 | 3.5 / 5.7 ms | ≤ 2 / 6 ms | 1.9 / 7 ms | **miss** |\n",
		"| – the claim's GET, asked for as the plugin asks, p50 |  |  | 1 ms |  |\n",
		"| 128 ms | 1.1 × Prepare alone: ≤ 2.09 ms | 2 ms | ok |\n",
		"| 198 ms (throttled) | as Prepare alone: ≤ 1.9 ms | 1.8 ms | ok |\n",
		"\n- NodeUnprepareResources, p50: " + whyUnprepare + "\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant in it\n%s", got, want)
		}
	}
	if strings.Contains(got, "RSS") {
		t.Errorf("got a row that was not measured:\n%s", got)
	}
}

func TestEveryAimHasAReasonToMissIt(t *testing.T) {
	for _, r := range rows {
		if (len(r.aim) > 0 || r.says != "") && r.why == "" {
			t.Errorf("%s: an aim, and no reason to miss it", r.what)
		}
	}
}
