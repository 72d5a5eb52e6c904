//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// testHelmTest runs what docs/start/install.md tells users to run after the installation.
func (s *suite) testHelmTest(t *testing.T) {
	helm := os.Getenv("HELM")
	if helm == "" {
		t.Skip("no helm in $HELM")
	}
	output, err := exec.CommandContext(t.Context(), helm, "test", "gpu-dra-driver", "--namespace", "gpu-dra-driver",
		"--logs", "--timeout", "1h").CombinedOutput()
	if err != nil {
		t.Fatalf("helm test: %v\n%s", err, output)
	}
	for _, want := range []string{`(?m)^` + s.node(t, "dgx-h100") + `: .*\b\d+ gpu\b`, `(?m)^GPU 0: \S.* \(UUID: GPU-`} {
		if !regexp.MustCompile(want).Match(output) {
			t.Errorf("got\n%s\nwant in it %s", output, want)
		}
	}
}
