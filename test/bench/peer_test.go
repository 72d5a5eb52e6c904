// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/buildinfo"
	"runtime/debug"
	"testing"
)

// The quotient is that of each round, and its median decides.
func TestComparisonTable(t *testing.T) {
	c := &contest{}
	for _, round := range [][2]float64{{10, 9}, {2, 4}, {5, 4.5}} {
		c.note("Prepare", 1, round[0], round[1])
		c.note("Unprepare", 0.9, round[0], round[1])
	}
	const want = "| ms, unless it says another unit | this driver | NVIDIA's | NVIDIA's ÷ this one, in each of 3 " +
		"rounds | aim | |\n|---|---:|---:|---:|---:|---|\n" +
		"| Prepare | 5 | 4.5 | 0.90 (0.90 to 2.00) | ≥ 1.0 | **miss** |\n" +
		"| Unprepare | 5 | 4.5 | 0.90 (0.90 to 2.00) | ≥ 0.9 | ok |\n"
	if got := c.table(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestCommitOfAProgram(t *testing.T) {
	built := func(settings ...debug.BuildSetting) *buildinfo.BuildInfo {
		return &buildinfo.BuildInfo{Settings: settings}
	}
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "95932046683719c4"}
	for _, row := range []struct {
		name string
		of   *buildinfo.BuildInfo
		want string
	}{
		{"no version control", built(), "unknown"},
		{"a commit", built(revision, debug.BuildSetting{Key: "vcs.modified", Value: "false"}), "`9593204`"},
		{"changed files", built(revision, debug.BuildSetting{Key: "vcs.modified", Value: "true"}),
			"`9593204` with changes"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := commitOf(row.of); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}
