// SPDX-License-Identifier: Apache-2.0

package smi_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/simulator/smi"
	"github.com/gpudra/gpu-dra-driver/test/nvidia"
)

// TestNVIDIA compares the simulated nvidia-smi with NVIDIA's own where there is no library of a driver. For an unknown
// option the real program says the same, and the simulated one says that it has no such option. With a library, both
// are compared in test/libnvml.
func TestNVIDIA(t *testing.T) {
	for _, branch := range nvidia.Branches(t) {
		for _, args := range []string{"", "-L", "-q -x", "--query-gpu=name --format=csv", "mig -lgip",
			"compute-policy --set-timeslice 1"} {
			t.Run(branch.Suite+" "+args, func(t *testing.T) {
				cmd := exec.CommandContext(t.Context(), branch.SMI(), strings.Fields(args)...)
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
