// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/internal/app"
	"github.com/gpudra/gpu-dra-driver/internal/check"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/simctl"
)

// simulated is a simulated machine in dir.
func simulated(t *testing.T, dir string, p simulator.Profile) *simulator.Node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	n, err := simulator.Open(dir, p)
	if err == nil {
		program := filepath.Join(t.TempDir(), "program")
		err = errors.Join(os.WriteFile(program, nil, 0o600),
			n.LayOut(simulator.Programs{NvidiaSMI: program, MPSControl: program}))
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// run runs the program with these arguments, and returns its output and exit code.
func run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := app.Command("dra-kubelet-plugin-sim", &simulation{}, simctl.Command())
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SilenceErrors = true
	cmd.SetArgs(args)
	code := app.ExitCode(cmd.Execute(), &out)
	return out.String(), code
}

// The recording reproduces the ResourceSlices and the CDI spec of the machine; both are in the report.
func TestCheckOfReplay(t *testing.T) {
	for _, name := range simulator.Profiles() {
		t.Run(name, func(t *testing.T) {
			dir, file := t.TempDir(), filepath.Join(t.TempDir(), "recording.yaml")
			p, err := simulator.BuiltIn(name)
			if err != nil {
				t.Fatal(err)
			}
			simulated(t, dir, p)
			if text, code := run(t, "record", "--simulate-dir", dir, "--output", file); code != 0 {
				t.Fatalf("record: exit code %d: %s", code, text)
			}
			want, _ := run(t, "check", "--json", "--simulate-dir", dir, "--node-name", "n")
			recorded, err := simulator.FindProfile(file, "")
			if err != nil {
				t.Fatal(err)
			}
			simulated(t, dir, recorded)
			got, _ := run(t, "check", "--json", "--simulate-dir", dir, "--node-name", "n")
			if got != want {
				t.Errorf("a replay differs: got\n%s\nwant\n%s", got, want)
			}
			var r check.Report
			if err := json.Unmarshal([]byte(got), &r); err != nil {
				t.Fatal(err)
			}
			if len(r.Slices) == 0 || r.CDI == nil || len(r.CDI.Devices) != 1 || len(r.GPUs) != len(p.GPUs) {
				t.Errorf("the report says little:\n%s", got)
			}
		})
	}
}

func TestRecordMasks(t *testing.T) {
	p, err := simulator.BuiltIn("t4-x2")
	if err != nil {
		t.Fatal(err)
	}
	n := simulated(t, t.TempDir(), p)
	t.Setenv("NAME", "secret-host") // as some shells have it
	text, code := run(t, "record", "--mask", "--simulate-dir", n.Dir())
	v, err := n.View()
	if err != nil || code != 0 {
		t.Fatal(err, code)
	}
	if strings.Contains(text, v.GPUs[0].UUID) || strings.Contains(text, "secret") ||
		!strings.Contains(text, "GPU-00000000-0000-0000-0000-000000000001") {
		t.Errorf("got:\n%s", text)
	}
}

func TestExitCodes(t *testing.T) {
	p, err := simulator.BuiltIn("t4-x2")
	if err != nil {
		t.Fatal(err)
	}
	n := simulated(t, t.TempDir(), p)
	for _, row := range []struct {
		name string
		args string
		code int
		want string
	}{
		{"warnings only", "check --simulate-dir " + n.Dir(), 0, "0 errors, "},
		{"an unknown flag", "check --jason", 2, "Error: unknown flag: --jason"},
		{"an argument", "check all", 2, "Error: "},
		{"no simulated node", "check --simulate-dir /nowhere", 1, "Error: attach to simulated node /nowhere"},
		{"an unknown flag of record", "record --masked", 2, "Error: unknown flag"},
	} {
		t.Run(row.name, func(t *testing.T) {
			text, code := run(t, strings.Fields(row.args)...)
			if code != row.code || !strings.Contains(text, row.want) {
				t.Errorf("exit code %d, want %d, and %q in:\n%s", code, row.code, row.want, text)
			}
		})
	}
}
