// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"testing"
)

func TestMetricsOf(t *testing.T) {
	for _, row := range []struct {
		name, out string
		want      map[string]float64
	}{
		{"metrics and time", "goos: linux\nBenchmarkPage-2   \t 1\t 432 ns/op\t 4.4 MiB-after\t 0 ms-longest\n",
			map[string]float64{"ns/op": 432, "MiB-after": 4.4, "ms-longest": 0}},
		{"other lines", "BenchmarkPage\nok  \tgithub.com/x 46.051s\n", map[string]float64{}},
	} {
		if got := metricsOf(row.out); !maps.Equal(got, row.want) {
			t.Errorf("%s: got %v, want %v", row.name, got, row.want)
		}
	}
}
