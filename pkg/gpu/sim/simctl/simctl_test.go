// SPDX-License-Identifier: Apache-2.0

package simctl_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/simctl"
)

// run is what simctl prints, or its error.
func run(args ...string) string {
	var out strings.Builder
	c := simctl.Command()
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&strings.Builder{})
	if err := c.Execute(); err != nil {
		return fmt.Sprintf("error: %v\n", err)
	}
	return out.String()
}

const (
	first  = "gpu-3b-00-0 Tesla T4 memory=15360MiB numa=0 root=pci0000:3a mode="
	second = "gpu-af-00-0 Tesla T4 memory=15360MiB numa=1 root=pci0000:ae mode=Default\n"
)

func TestCommands(t *testing.T) {
	for _, tt := range []struct{ name, commands, want string }{
		{"print", "print", "t4-x2 driver=580.95.05\n" + first + "Default\n" + second},
		{"set both", "set gpu-3b-00-0 compute-mode=EXCLUSIVE_PROCESS memory-used=5Gi; print",
			"t4-x2 driver=580.95.05\n" + first + "Exclusive_Process used=5120MiB\n" + second},
		{"set back", "set 0 compute-mode=PROHIBITED; set 0 compute-mode=DEFAULT memory-used=0; print", "t4-x2 driver=580.95.05\n" + first + "Default\n" + second},
		{"fail and heal", "fail 0 all ERROR_GPU_IS_LOST; fail 0000:AF:00.0 GetName ERROR_UNKNOWN; heal 0; print",
			"t4-x2 driver=580.95.05\n" + first + "Default\n" + second + "gpu-af-00-0 fails GetName ERROR_UNKNOWN\n"},
		{"an unknown GPU", "heal gpu-00-00-0", `error: no GPU "gpu-00-00-0"; this node has gpu-3b-00-0, gpu-af-00-0 (an index from 0 to 1 or a UUID will also do)` + "\n"},
		{"an unknown call", "fail 0 GetNam ERROR_UNKNOWN", `error: NVML has no device call "GetNam"; the calls are the methods of go-nvml's Device, such as GetName,`},
		{"an unknown error", "fail 0 GetName UNKNOWN", `error: error "UNKNOWN" is not one of ERROR_UNINITIALIZED, `},
		{"an unknown setting", "set 0 mode=x", `error: setting "mode=x": want compute-mode=DEFAULT|EXCLUSIVE_PROCESS|PROHIBITED or memory-used=BYTES`},
		{"an unknown mode", "set 0 compute-mode=x", `error: compute mode "x" is not one of DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED`},
		{"no number of bytes", "set 0 memory-used=much", `error: memory-used "much": want a number of bytes such as 5Gi, 512Mi or 0`},
		{"a part of a byte", "set 0 memory-used=500m", `error: memory-used "500m": want a number of bytes`},
		{"less than nothing", "set 0 memory-used=-1", `error: memory-used "-1": want a number of bytes`},
		{"more than there is", "set 0 memory-used=1Ti", "error: gpu-3b-00-0: 1099511627776 bytes used: at most 15639511040 of its memory are free for use\n"},
		{"nothing is set when one setting is wrong", "set 0 memory-used=1Gi compute-mode=x; print", "t4-x2 driver=580.95.05\n" + first + "Default\n" + second},
		{"profiles", "profiles", "dgx-h100   NVIDIA DGX H100, 8x H100 SXM 80 GB connected by NVSwitch, two sockets\nl40s-x4 "},
		{"a profile", "profile t4-x2", "# SPDX-License-Identifier"},
		{"an unknown profile", "profile b200", `error: no profile "b200"; built in are dgx-h100, l40s-x4, mixed, t4-x2` + "\n"},
		{"an unknown command", "destroy", `error: unknown command "destroy" for "simctl"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := node.BuiltIn("t4-x2")
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if _, err := node.Open(dir, p); err != nil {
				t.Fatal(err)
			}
			var got string
			for _, command := range strings.Split(tt.commands, "; ") {
				got = run(append([]string{"--dir", dir}, strings.Fields(command)...)...)
			}
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
}

func TestWithoutANode(t *testing.T) {
	dir := t.TempDir()
	want := fmt.Sprintf("error: attach to simulated node %s: no simulated node here: %s\n", dir, dir)
	if got := run("--dir", dir, "print"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
