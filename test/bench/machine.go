// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/page"
)

// benchDocs and peerDocs are the pages of `make bench` and of `make compare`.
const (
	benchDocs = "docs/project/results/benchmarks.md"
	peerDocs  = "docs/project/results/comparison.md"
)

// thisMachine describes the machine and the versions of the measurement, for that page.
func thisMachine(ctx context.Context, b *bench, docs string) string {
	kubernetes := "?"
	if version, err := b.client.Discovery().ServerVersion(); err == nil {
		kubernetes = strings.TrimPrefix(version.GitVersion, "v")
	}
	return page.Machine(ctx, docs, kubernetes)
}

// busy returns the processor time that the machine has used so far, without idle, iowait and steal.
func busy() (time.Duration, error) {
	const tick = 10 * time.Millisecond // proc(5), USER_HZ
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	var total time.Duration
	for i, field := range strings.Fields(line) {
		if i == 0 || i == 4 || i == 5 || i > 7 { // the name, idle, iowait, steal; guests are in user
			continue
		}
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		total += time.Duration(n) * tick
	}
	return total, nil
}
