// SPDX-License-Identifier: Apache-2.0

package hack_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestKubeconfig looks at what make would run, for a cluster that is merely the current one must stay as it is.
func TestKubeconfig(t *testing.T) {
	for _, tc := range []struct {
		name, target string
		args, env    []string
		want         string // the last line
	}{
		{"tests on a cluster of their own", "test-e2e", nil, nil, "go run ./hack/dev e2e"},
		{"an exported KUBECONFIG is not a wish", "test-e2e", nil, []string{"KUBECONFIG=/prod"}, "go run ./hack/dev e2e"},
		{"neither when make prefers the environment", "test-e2e", []string{"-e"}, []string{"KUBECONFIG=/prod"}, "go run ./hack/dev e2e"},
		{"neither for the demos", "demo", nil, []string{"KUBECONFIG=/prod"}, "go run ./hack/dev demo"},
		{"tests on a named cluster", "test-e2e", []string{"KUBECONFIG=/kind"}, []string{"KUBECONFIG=/prod"}, `go run ./hack/dev e2e -kubeconfig "/kind"`},
		{"demos on a named cluster", "demo", []string{"KUBECONFIG=/kind"}, nil, `go run ./hack/dev demo -kubeconfig "/kind"`},
		{"an empty name is not taken for none", "test-e2e", []string{"KUBECONFIG="}, nil, `go run ./hack/dev e2e -kubeconfig ""`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "make", append([]string{"-C", "..", "--no-print-directory", "-n", tc.target, "GO=go"}, tc.args...)...)
			for _, variable := range os.Environ() {
				if name, _, _ := strings.Cut(variable, "="); name != "KUBECONFIG" && !strings.HasPrefix(name, "MAKE") && name != "MFLAGS" {
					cmd.Env = append(cmd.Env, variable)
				}
			}
			cmd.Env = append(cmd.Env, tc.env...)
			output, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, output)
			}
			lines := strings.Split(strings.TrimSpace(string(output)), "\n")
			if got := strings.TrimSpace(lines[len(lines)-1]); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
