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

	"github.com/gpudra/gpu-dra-driver/internal/doctor"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim"
)

// simulated is a simulated machine in dir.
func simulated(t *testing.T, dir string, p sim.Profile) *sim.Node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	n, err := sim.Open(dir, p)
	if err == nil {
		program := filepath.Join(t.TempDir(), "program")
		err = errors.Join(os.WriteFile(program, nil, 0o600), n.LayOut(sim.Programs{NvidiaSMI: program, MPSControl: program}))
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// say runs the program with these arguments, and returns what it prints and its exit code.
func say(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SilenceErrors = true
	cmd.SetArgs(args)
	code := exitCode(cmd.Execute(), &out)
	return out.String(), code
}

// What the driver makes of a machine follows from its recording: the slices and the CDI spec are in the report.
func TestAReplayIsCheckedAsTheMachineWas(t *testing.T) {
	for _, name := range sim.Profiles() {
		t.Run(name, func(t *testing.T) {
			dir, file := t.TempDir(), filepath.Join(t.TempDir(), "recording.yaml")
			p, err := sim.BuiltIn(name)
			if err != nil {
				t.Fatal(err)
			}
			simulated(t, dir, p)
			if text, code := say(t, "record", "--simulate-dir", dir, "--output", file); code != 0 {
				t.Fatalf("record: exit code %d: %s", code, text)
			}
			want, _ := say(t, "check", "--json", "--simulate-dir", dir, "--node-name", "n")
			recorded, err := findProfile(file, "")
			if err != nil {
				t.Fatal(err)
			}
			simulated(t, dir, recorded)
			got, _ := say(t, "check", "--json", "--simulate-dir", dir, "--node-name", "n")
			if got != want {
				t.Errorf("a replay differs: got\n%s\nwant\n%s", got, want)
			}
			var r doctor.Report
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
	p, err := sim.BuiltIn("t4-x2")
	if err != nil {
		t.Fatal(err)
	}
	n := simulated(t, t.TempDir(), p)
	t.Setenv("NAME", "secret-host") // as some shells have it
	text, code := say(t, "record", "--mask", "--simulate-dir", n.Dir())
	v, err := n.View()
	if err != nil || code != 0 {
		t.Fatal(err, code)
	}
	if strings.Contains(text, v.GPUs[0].UUID) || strings.Contains(text, "secret") || !strings.Contains(text, "GPU-00000000-0000-0000-0000-000000000001") {
		t.Errorf("got:\n%s", text)
	}
}

func TestCheckTakesThePluginsEnvironment(t *testing.T) {
	t.Setenv("DRIVER_ROOT", "/run/nvidia/driver")
	t.Setenv("DRIVER_ROOT_MOUNT", "/nowhere")
	if text, _ := say(t, "check"); !strings.Contains(text, "/run/nvidia/driver (seen here as /nowhere)") {
		t.Errorf("got:\n%s", text)
	}
}

func TestExitCodes(t *testing.T) {
	p, err := sim.BuiltIn("t4-x2")
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
		{"no driver", "check --driver-root /nowhere --driver-root-mount /nowhere", 1, "error no-library"},
		{"an unknown flag", "check --jason", 2, "Error: unknown flag: --jason"},
		{"an argument", "check all", 2, "Error: "},
		{"no simulated node", "check --simulate-dir /nowhere", 1, "Error: attach to simulated node /nowhere"},
		{"nothing to record", "record --driver-root /nowhere --driver-root-mount /nowhere", 1, "Error: libnvidia-ml.so.1 is in no library directory below /nowhere"},
		{"an unknown flag of record", "record --masked", 2, "Error: unknown flag"},
	} {
		t.Run(row.name, func(t *testing.T) {
			text, code := say(t, strings.Fields(row.args)...)
			if code != row.code || !strings.Contains(text, row.want) {
				t.Errorf("exit code %d, want %d, and %q in:\n%s", code, row.code, row.want, text)
			}
		})
	}
}
