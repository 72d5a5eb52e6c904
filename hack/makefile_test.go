// SPDX-License-Identifier: Apache-2.0

package hack_test

import (
	"os"
	"os/exec"
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

// TestLint: golangci-lint is part of the tests that CI runs, and not of those that run all the time.
func TestLint(t *testing.T) {
	for target, want := range map[string]bool{"lint": true, "test": true, "test-unit": false} {
		output := dryRun(t, []string{target, "TOOLS=/tools"})
		if got := strings.Contains(output, "./hack/golangci-lint/run.sh"); got != want {
			t.Errorf("make %s runs golangci-lint: got %v, want %v", target, got, want)
		}
	}
}

// dryRun returns the commands that make would run. No variable of a make around this test reaches it.
func dryRun(t *testing.T, args []string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make",
		append([]string{"-C", "..", "--no-print-directory", "-n", "GO=go"}, args...)...)
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
