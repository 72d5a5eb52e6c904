// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// alphaGates are the feature gates of DRA that Kubernetes 1.34 and 1.35 have, switched off.
const alphaGates = "DRAConsumableCapacity=true,DRADeviceTaints=true,DRAExtendedResource=true," +
	"DRAPartitionableDevices=true"

// kubernetesRun is a run of the end-to-end tests: a column of docs/start/compatibility.md.
type kubernetesRun struct {
	title   string
	version string // of test/cluster; empty: the newest
	gates   string // besides the default ones
	apis    string // besides the default ones, for the gates
}

var kubernetesRuns = []kubernetesRun{
	{title: "1.34", version: "v1.34"},
	// Without this API the scheduler waits for ever for DeviceTaintRules, which have a gate of their own since 1.35.
	{title: "1.34 with alpha gates", version: "v1.34", gates: alphaGates, apis: "resource.k8s.io/v1alpha3=true"},
	{title: "1.35", version: "v1.35"},
	{title: "1.35 with alpha gates", version: "v1.35", gates: alphaGates},
	{title: "1.35.0 with alpha gates", version: "v1.35.0", gates: alphaGates},
	{title: "1.36.0", version: "v1.36.0"},
	{title: "1.36", version: "v1.36"},
	{title: "1.37.0", version: "v1.37.0"},
	newest,
}

// newest is what all other tests run on. Unlike by default, PodGroups can have claims.
var newest = kubernetesRun{title: "1.37", gates: "DRAWorkloadResourceClaims=true,GenericWorkload=true",
	apis: "scheduling.k8s.io/v1beta1=true"}

// versionRows are the rows of docs/start/compatibility.md: what users can have, and the tests that show it.
var versionRows = []struct {
	title string
	tests []string
}{
	{"GPUs by model, memory, compute capability", []string{demoTest("by-model"), demoTest("by-memory-and-capability")}},
	{"two GPUs that belong together: NVLink, NUMA node", []string{demoTest("nvlink-pair"), demoTest("numa-pair")}},
	{"a claim for several containers and pods; time slices and MPS in it", []string{demoTest("shared-claim"),
		demoTest("time-slices"), demoTest("mps-claim")}},
	{"shares of a GPU: memory and cores", []string{demoTest("fractions"), demoTest("mixed-modes")}},
	{"replicas, as with the device plugin", []string{demoTest("replicas"), demoTest("from-the-device-plugin")}},
	{"partitions that somebody has made", []string{demoTest("mig-static")}},
	{"partitions made for claims", []string{demoTest("mig-1g"), demoTest("mig-two-profiles"),
		demoTest("mig-and-whole-gpu")}},
	{"`nvidia.com/gpu: 1` without a claim", []string{demoTest("extended-resource")}},
	{"the strongest GPU", []string{demoTest("strongest"), demoTest("strongest-first")}},
	{"the monitor device", []string{demoTest("monitor")}},
	{"taints: sick GPUs are avoided and drained", []string{demoTest("sick-gpu")}},
	{"status of claims, metadata in containers, metrics", []string{
		"TestCluster/the_claim's_status,_the_container's_metadata_and_the_metrics_show_its_GPU"}},
	{"mistakes are refused when a claim is created", []string{demoTest("mistake"),
		"TestCluster/the_webhook_refuses_invalid_claims"}},
}

func demoTest(folder string) string { return "TestCluster/every_demo_is_as_its_README_says/" + folder }

const versionsPage = "docs/start/compatibility.md"

// versions runs the end-to-end tests on every pinned version of Kubernetes and writes the table of
// docs/start/compatibility.md. VERSIONS selects columns by a pattern; the others stay as they are. A test that fails
// does not end it.
func versions(ctx context.Context) error {
	selected, err := regexp.Compile("^(" + os.Getenv("VERSIONS") + ")")
	if err != nil {
		return fmt.Errorf("VERSIONS: %w", err)
	}
	if !slices.ContainsFunc(kubernetesRuns, func(r kubernetesRun) bool { return selected.MatchString(r.title) }) {
		return fmt.Errorf("VERSIONS: want the beginning of a title of a column of %s, got %q", versionsPage,
			os.Getenv("VERSIONS"))
	}
	page, err := os.ReadFile(versionsPage)
	if err != nil {
		return err
	}
	table, err := parseVersions(string(page))
	if err != nil {
		return fmt.Errorf("%s: %w", versionsPage, err)
	}
	var failures []error
	for _, r := range kubernetesRuns {
		if !selected.MatchString(r.title) {
			continue
		}
		say("the end-to-end tests on Kubernetes %s", r.title)
		results := &results{}
		if err := r.test(ctx, "", results); err != nil {
			failures = append(failures, fmt.Errorf("kubernetes %s: %w", r.title, err))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if results.text.Len() == 0 {
			continue // no test has run, so the column stays as it is
		}
		table[r.title] = results.column()
		if err := os.WriteFile(versionsPage, []byte(withVersions(string(page), table)), 0o644); err != nil {
			return err
		}
	}
	return errors.Join(failures...)
}

// results reads the output of go test -v.
type results struct {
	text strings.Builder
}

func (r *results) Write(p []byte) (int, error) { return r.text.Write(p) }

var (
	testResult = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+) \(`)
	skipReason = regexp.MustCompile(`(?m)^\s*\w+_test\.go:\d+: the cluster lacks (.*)$`)
)

// column returns the cells of the rows.
func (r *results) column() map[string]string {
	text := r.text.String()
	cells := map[string]string{}
	for _, row := range versionRows {
		cell := "yes"
		for _, test := range row.tests {
			if is := result(text, test); is != "yes" && cell != failed {
				cell = is
			}
		}
		cells[row.title] = cell
	}
	return cells
}

// failed is the cell of a row of which any test fails.
const failed = "**fails**"

// result returns the cell of one test.
func result(text, test string) string {
	for _, found := range testResult.FindAllStringSubmatch(text, -1) {
		if found[2] != test {
			continue
		}
		switch found[1] {
		case "PASS":
			return "yes"
		case "FAIL":
			return failed
		}
		_, output, _ := strings.Cut(text, "=== RUN   "+test+"\n")
		output, _, _ = strings.Cut(output, "=== ")
		if reason := skipReason.FindStringSubmatch(output); reason != nil {
			return "no: " + reason[1]
		}
		return "skipped"
	}
	return "not run"
}

// The table is between these lines.
const (
	versionsBegin = "<!-- generated: make test-versions -->\n"
	versionsEnd   = "<!-- end -->"
)

// parseVersions returns the cells of the page's table: column → row → cell.
func parseVersions(page string) (map[string]map[string]string, error) {
	_, table, begins := strings.Cut(page, versionsBegin)
	table, _, ends := strings.Cut(table, versionsEnd)
	if !begins || !ends {
		return nil, errors.New("no generated table")
	}
	all := map[string]map[string]string{}
	var titles []string
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case len(cells) < 2 || strings.HasPrefix(cells[0], "---"):
		case titles == nil:
			titles = cells
		default:
			for i, cell := range cells[1:min(len(cells), len(titles))] {
				title := titles[i+1]
				if all[title] == nil {
					all[title] = map[string]string{}
				}
				all[title][cells[0]] = cell
			}
		}
	}
	return all, nil
}

// withVersions returns the page with this table. A column or cell that has not been run is marked so.
func withVersions(page string, table map[string]map[string]string) string {
	var b strings.Builder
	b.WriteString("| on Kubernetes |")
	for _, r := range kubernetesRuns {
		fmt.Fprintf(&b, " %s |", r.title)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(kubernetesRuns)) + "\n")
	for _, row := range versionRows {
		fmt.Fprintf(&b, "| %s |", row.title)
		for _, r := range kubernetesRuns {
			cell := table[r.title][row.title]
			if cell == "" {
				cell = "not run"
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	before, rest, _ := strings.Cut(page, versionsBegin)
	_, after, _ := strings.Cut(rest, versionsEnd)
	return before + versionsBegin + b.String() + versionsEnd + after
}
