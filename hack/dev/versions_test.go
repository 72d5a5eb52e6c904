// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"strings"
	"testing"
)

const sampleRun = `=== RUN   TestCluster
=== RUN   TestCluster/every_demo_is_as_its_README_says/by-model
=== RUN   TestCluster/every_demo_is_as_its_README_says/fractions
    suite_test.go:12: the cluster lacks DRAConsumableCapacity
=== RUN   TestCluster/every_demo_is_as_its_README_says/mixed-modes
=== RUN   TestCluster/every_demo_is_as_its_README_says/from-the-device-plugin
    suite_test.go:12: the cluster lacks DRAConsumableCapacity
    --- FAIL: TestCluster/every_demo_is_as_its_README_says (0.00s)
        --- PASS: TestCluster/every_demo_is_as_its_README_says/by-model (1.00s)
        --- PASS: TestCluster/every_demo_is_as_its_README_says/by-memory-and-capability (1.00s)
        --- SKIP: TestCluster/every_demo_is_as_its_README_says/fractions (0.00s)
        --- PASS: TestCluster/every_demo_is_as_its_README_says/mixed-modes (1.00s)
        --- FAIL: TestCluster/every_demo_is_as_its_README_says/replicas (1.00s)
        --- SKIP: TestCluster/every_demo_is_as_its_README_says/from-the-device-plugin (0.00s)
        --- FAIL: TestCluster/every_demo_is_as_its_README_says/mig-static (1.00s)
        --- PASS: TestCluster/every_demo_is_as_its_README_says/sick-gpu (1.00s)
`

func TestColumn(t *testing.T) {
	r := &results{}
	_, _ = r.Write([]byte(sampleRun))
	column := r.column()
	for row, want := range map[string]string{
		"GPUs by model, memory, compute capability": "yes",
		"shares of a GPU: memory and cores":         "no: DRAConsumableCapacity",
		"replicas, as with the device plugin":       "**fails**",
		"partitions that somebody has made":         "**fails**",
		"taints: sick GPUs are avoided and drained": "yes",
		"the monitor device":                        "not run",
	} {
		if column[row] != want {
			t.Errorf("%s: got %q, want %q", row, column[row], want)
		}
	}
}

// A column that is written can be read again, and the others stay.
func TestVersionsPage(t *testing.T) {
	page, err := os.ReadFile("../../" + versionsPage)
	if err != nil {
		t.Fatal(err)
	}
	table, err := parseVersions(string(page))
	if err != nil {
		t.Fatal(err)
	}
	if again := withVersions(string(page), table); again != string(page) {
		t.Errorf("written again, the page differs: %s", again)
	}
	r := &results{}
	_, _ = r.Write([]byte(sampleRun))
	before := maps.Clone(table["1.34"])
	table["1.35"] = r.column()
	after, err := parseVersions(withVersions(string(page), table))
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(after["1.34"], before) || !maps.Equal(after["1.35"], r.column()) {
		t.Errorf("got %v", after)
	}
	if _, err := parseVersions(strings.ReplaceAll(string(page), versionsBegin, "")); err == nil {
		t.Error("a page without a table: want an error")
	}
}

// TestOldestTests: each part of the pattern selects tests. go test says nothing of one that selects none.
func TestOldestTests(t *testing.T) {
	suite, err := os.ReadFile("../../test/e2e/suite_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, parts, found := strings.Cut(strings.TrimSuffix(oldestTests, ")"), "/(")
	for part := range strings.SplitSeq(parts, "|") {
		if !found || !strings.Contains(string(suite), `	t.Run("`+strings.ReplaceAll(part, "_", " ")) {
			t.Errorf("no test of suite_test.go begins with %q, a part of %s", part, oldestTests)
		}
	}
}
