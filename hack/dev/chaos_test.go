// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What a violation has left is still there after the next run.
func TestLogsOfAnEarlierRunAreKept(t *testing.T) {
	t.Chdir(t.TempDir())
	c := cluster{name: "chaos"}
	if err := keepEarlier(c); err != nil {
		t.Fatalf("without an earlier run: %v", err)
	}
	logs, err := c.logs()
	if err != nil {
		t.Fatal(err)
	}
	for _, day := range []int{1, 2} {
		if err := os.MkdirAll(logs, 0o755); err != nil {
			t.Fatal(err)
		}
		at := time.Date(2026, time.November, day, 13, 14, 15, 0, time.UTC)
		if err := os.Chtimes(logs, at, at); err != nil {
			t.Fatal(err)
		}
		if err := keepEarlier(c); err != nil {
			t.Fatal(err)
		}
	}
	found, _ := filepath.Glob("_output/logs/*")
	if len(found) != 2 || found[0] != "_output/logs/chaos-20261101T131415" ||
		found[1] != "_output/logs/chaos-20261102T131415" {
		t.Errorf("got %q", found)
	}
}
