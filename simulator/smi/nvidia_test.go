// SPDX-License-Identifier: Apache-2.0

package smi_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/simulator/smi"
)

// TestNVIDIA compares the simulated nvidia-smi with NVIDIA's own where there is no library of a driver. For an unknown
// option the real program says the same, and the simulated one says that it has no such option. With a library, both
// are compared in test/libnvml.
func TestNVIDIA(t *testing.T) {
	packages := os.Getenv("NVIDIA_PACKAGES")
	if packages == "" {
		t.Skip("without NVIDIA's packages: run make test-nvidia")
	}
	for _, suite := range []string{"bookworm", "trixie", "experimental"} {
		for _, args := range []string{"", "-L", "-q -x", "--query-gpu=name --format=csv", "mig -lgip",
			"compute-policy --set-timeslice 1"} {
			t.Run(suite+" "+args, func(t *testing.T) {
				cmd := exec.CommandContext(t.Context(), filepath.Join(packages, suite,
					"root/usr/lib/nvidia/current/nvidia-smi"), strings.Fields(args)...)
				cmd.Env = []string{}
				text, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				if !errors.As(err, &exit) {
					t.Fatalf("got %v: %s", err, text)
				}
				var out, problems strings.Builder
				code := smi.Run(smi.Machine{Roots: []string{t.TempDir()}}, strings.Fields(args), time.Now(), &out,
					&problems)
				if got := out.String() + problems.String(); got != string(text) || code != exit.ExitCode() {
					t.Errorf("got exit code %d and\n%swant %d and\n%s", code, got, exit.ExitCode(), text)
				}
			})
		}
	}
}
