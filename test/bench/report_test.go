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
	ms := func(values ...int) (all samples) {
		for _, v := range values {
			all = append(all, time.Duration(v)*time.Millisecond)
		}
		return all
	}
	b := &bench{
		results: map[string][]float64{"prepare": {1.9}, "get": {1}, "preparepaused": {1.8}, "prepare200": {2},
			"backtoback": {1.8}, "timeslice": {5, 1}},
		comparisons: []*comparison{{what: "Prepare", aims: []float64{1.3, 2}, why: "a reason", times: [3][]samples{
			driverIndex: {ms(6, 6, 6), ms(5, 5, 5), ms(8, 8, 8)}, nullIndex: {ms(1, 1, 1), ms(1, 1, 1), ms(1, 1, 1)},
			safeIndex: {ms(4, 4, 4), ms(4, 4, 4), ms(4, 4, 4)}}}},
	}
	got := b.report("On a machine.")
	for _, want := range []string{
		"On a machine.\n\n| ms |",
		"| Prepare, p50 | 1 | 4 | 6 | 1.5 (1.25 to 2) | ≤ 1.3 | **miss** |\n",
		"| Prepare, p99 | 1 | 4 | 8 | 1.5 (1.25 to 2) | ≤ 2 | ok |\n",
		"| NodePrepareResources, one GPU, p50 |  | 1.9 ms |  |\n",
		"| – the claim's GET, asked for as the plugin asks, p50 |  | 1 ms |  |\n",
		"| 1.15 × without them: ≤ 2.07 ms | 2 ms | ok |\n",
		"| as Prepare alone: ≤ 1.9 ms | 1.8 ms | ok |\n",
		"\n- Prepare, p50: a reason\n",
		"\n- TimeSlicing prepare / unprepare, p50, with a no-op `nvidia-smi`: " + whyTimeSlice + "\n",
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
