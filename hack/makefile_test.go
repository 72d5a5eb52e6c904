// SPDX-License-Identifier: Apache-2.0

package hack_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestKubeconfig: make uses an existing cluster only when its command line has a KUBECONFIG. An exported one may be of
// any cluster.
func TestKubeconfig(t *testing.T) {
	for _, tc := range []struct {
		name, target string
		args, env    []string
		want         string // the last command
	}{
		{"tests on a cluster of their own", "test-e2e", nil, nil, "_output/bin/dev e2e"},
		{"an exported KUBECONFIG is ignored", "test-e2e", nil, []string{"KUBECONFIG=/prod"},
			"_output/bin/dev e2e"},
		{"also when make prefers the environment", "test-e2e", []string{"-e"}, []string{"KUBECONFIG=/prod"},
			"_output/bin/dev e2e"},
		{"also for the demos", "demo", nil, []string{"KUBECONFIG=/prod"}, "_output/bin/dev demo"},
		{"tests on a named cluster", "test-e2e", []string{"KUBECONFIG=/kind"}, []string{"KUBECONFIG=/prod"},
			`_output/bin/dev e2e -kubeconfig "/kind"`},
		{"demos on a named cluster", "demo", []string{"KUBECONFIG=/kind"}, nil,
			`_output/bin/dev demo -kubeconfig "/kind"`},
		{"an empty KUBECONFIG is passed on", "test-e2e", []string{"KUBECONFIG="}, nil,
			`_output/bin/dev e2e -kubeconfig ""`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			output := dryRun(t, append([]string{tc.target}, tc.args...), tc.env...)
			lines := strings.Split(strings.TrimSpace(output), "\n")
			last := strings.TrimSpace(lines[len(lines)-1])
			if _, got, _ := strings.Cut(last, "./hack/dev && "); got != tc.want {
				t.Errorf("got %s, want it to end with %s", last, tc.want)
			}
		})
	}
}

// TestFuzz: make fuzz finds the targets by itself, and runs all that match.
func TestFuzz(t *testing.T) {
	for pattern, want := range map[string]string{
		"pkg/sharing Fuzz": "test -run ^$ -fuzz ^FuzzClaim$ -fuzztime 5s -fuzzminimizetime 1s ./pkg/sharing\n" +
			"test -run ^$ -fuzz ^FuzzDecode$ -fuzztime 5s -fuzzminimizetime 1s ./pkg/sharing\n",
		"FuzzNothing": "no fuzz target matches FuzzNothing\n",
	} {
		cmd := exec.Command("./fuzz.sh", "5s", pattern)
		cmd.Env = append(os.Environ(), "GO=echo")
		out, err := cmd.CombinedOutput()
		got := regexp.MustCompile(`(?m)^== .*\n`).ReplaceAllString(string(out), "")
		if got != want || (err == nil) != strings.HasPrefix(want, "test") {
			t.Errorf("%s: got error %v and\n%s\nwant\n%s", pattern, err, got, want)
		}
	}
}

// TestLint: golangci-lint is part of the tests that CI runs, and not of those that run all the time.
func TestLint(t *testing.T) {
	for target, want := range map[string]bool{"lint": true, "test": true, "test-unit": false} {
		output := dryRun(t, []string{target, "TOOLS=/tools"})
		if got := strings.Contains(output, "./hack/golangci-lint/run.sh"); got != want {
			t.Errorf("make %s runs golangci-lint: got %v, want %v", target, got, want)
		}
	}
}

// TestEachPackageOnce: make test runs the unit tests of every package, and none of them twice. Tests that one run skips
// are all that another runs.
func TestEachPackageOnce(t *testing.T) {
	commands := dryRun(t, []string{"test", "TOOLS=/tools"})
	tests := regexp.MustCompile(`(?m)^(?:HELM=\S+ )?(go test -vet=off .*)$`).FindAllStringSubmatch(commands, -1)
	counted := map[string]int{}
	only := regexp.MustCompile(` -(skip|run) '([^']*)'`)
	skipped, run := map[string]int{}, map[string]int{}
	for _, found := range tests {
		switch selected := only.FindStringSubmatch(found[1]); {
		case selected == nil:
		case selected[1] == "run":
			run[selected[2]]++
			continue
		default:
			skipped[selected[2]]++
		}
		// What go test would run, asked of go list.
		list := strings.NewReplacer("go test -vet=off", "go list", " -race", "").Replace(
			only.ReplaceAllString(found[1], ""))
		output, err := exec.CommandContext(t.Context(), "sh", "-c", "cd .. && "+list).Output()
		if err != nil {
			t.Fatalf("%s: %v", list, err)
		}
		for pkg := range strings.FieldsSeq(string(output)) {
			counted[pkg]++
		}
	}
	if !maps.Equal(skipped, run) {
		t.Errorf("got %v skipped, and only %v run", skipped, run)
	}
	all, err := exec.CommandContext(t.Context(), "go", "list", "-C", "..", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.FieldsSeq(string(all)) {
		if counted[pkg] != 1 {
			t.Errorf("make test runs the tests of %s %d times, want once", pkg, counted[pkg])
		}
	}
}

// TestEveryTarget: make test is what CI runs, so all of these are part of it, and the rest is part of make nightly.
func TestEveryTarget(t *testing.T) {
	commands, nightly := dryRun(t, []string{"test", "TOOLS=/tools"}), dryRun(t, []string{"nightly", "TOOLS=/tools"})
	for target, want := range map[string]string{
		"oldest": "_output/bin/dev oldest", "a release": "-run '^TestDist$'", "Karpenter": "go test -C test/karpenter",
		"Kueue": "go test -C test/kueue",
	} {
		if got := strings.Count(nightly, want); got != 1 || strings.Contains(commands, want) {
			t.Errorf("%s: %q is there %d times, want once, and not in make test", target, want, got)
		}
	}
	for target, want := range map[string]string{
		"lint": "./hack/golangci-lint/run.sh", "pages": "./hack/vale/run.sh", "workflows": "./hack/tool.sh actionlint",
		"vet": "go vet ./...", "vet of tests": "go vet -tags e2e ./test/e2e/...",
		"race": "go test -vet=off -race ", "nvidia": "go test -run NVIDIA", "alerts": "go test -C test/alerts",
		"kind": "go test -C test/kind/tool", "allocators": "go test -C test/allocators -vet=off ./...",
		"cluster": "go test -C test/cluster", "e2e": "_output/bin/dev e2e",
		"what computes": "make compute", "survive": "_output/bin/dev survive", "scale": "SCALE_SMALL=1 ",
	} {
		if got := strings.Count(commands, want); got != 1 {
			t.Errorf("%s: %q is there %d times, want once", target, want, got)
		}
	}
}

// dryRun returns the commands that make would run. No variable of a make around this test reaches it, and it does not
// write the log of one.
func dryRun(t *testing.T, args []string, env ...string) string {
	t.Helper()
	if _, err := os.ReadFile("../Makefile"); err != nil { // so that go test knows that the result depends on it
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "make",
		append([]string{"-C", "..", "--no-print-directory", "-n", "GO=go",
			"BESIDE=" + filepath.Join(t.TempDir(), "log")}, args...)...)
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); name != "KUBECONFIG" && !strings.HasPrefix(name, "MAKE") &&
			name != "MFLAGS" {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return string(output)
}
