// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// measurePage runs the benchmark of the page in a browser, which is among the tests of kubectl-gpu, as the client of
// the browser is. Without Chromium the rows stay empty.
func measurePage(ctx context.Context, b *bench) error {
	cmd := exec.CommandContext(ctx, "go", "test", "./kubectl-gpu/commands", "-run=^$", "-bench=^BenchmarkPage$",
		"-benchtime=1x", "-v")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP") {
		fmt.Println("page: no program chromium on PATH: its rows stay empty")
		return nil
	}
	values := metricsOf(string(out))
	for key, names := range map[string][]string{"page": {"ms-first"}, "pageall": {"ms-all"},
		"pagechange": {"ms-changed"}, "pagescroll": {"ms-longest"}, "pagememory": {"MiB-before", "MiB-after"},
		"pageseconds": {"s-changes"}} {
		for _, name := range names {
			value, ok := values[name]
			if !ok {
				return fmt.Errorf("no metric %s in %s", name, out)
			}
			b.results[key] = append(b.results[key], value)
		}
	}
	return nil
}

// metricsOf returns the metrics that the benchmarks of go test print, by their units.
func metricsOf(out string) map[string]float64 {
	all := map[string]float64{}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		for i := 2; i+1 < len(fields); i += 2 { // after the name and the number of runs
			if value, err := strconv.ParseFloat(fields[i], 64); err == nil {
				all[fields[i+1]] = value
			}
		}
	}
	return all
}
