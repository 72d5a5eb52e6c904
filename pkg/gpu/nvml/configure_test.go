// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/smi"
)

// TestMain lets the test program be the nvidia-smi of the machines that it makes.
func TestMain(m *testing.M) {
	if self, err := os.Readlink("/proc/self/exe"); err == nil && filepath.Base(self) == "nvidia-smi" {
		os.Exit(smi.Run(smi.Here(), os.Args[1:], time.Now(), os.Stdout, os.Stderr))
	}
	if root := os.Getenv(rootVariable); root != "" {
		lookTwice(root)
		return
	}
	os.Exit(m.Run())
}

func TestConfigure(t *testing.T) {
	exclusive, long := gpu.Settings{Mode: gpu.ExclusiveProcess}, gpu.Settings{Interval: gpu.IntervalLong}
	both := gpu.Settings{Mode: gpu.ExclusiveProcess, Interval: gpu.IntervalShort}
	undo := gpu.Settings{Interval: gpu.IntervalDefault}
	lost := func(m *simulator.Node) error { return m.Unplug("0") }
	for _, tt := range []struct {
		name     string
		old      bool // a card that has no time slice to set
		before   func(m *simulator.Node) error
		settings []gpu.Settings
		want     string // the first GPU then, or the error
		errorIs  error
	}{
		{"nothing", false, nil, []gpu.Settings{{}}, "mode=Default", nil},
		{"an interval", false, nil, []gpu.Settings{long}, "mode=Default interval=Long", nil},
		{"exclusive", false, nil, []gpu.Settings{exclusive}, "mode=Exclusive_Process", nil},
		{"both, twice", false, nil, []gpu.Settings{both, both}, "mode=Exclusive_Process interval=Short", nil},
		{"one, then the other", false, nil, []gpu.Settings{long, exclusive}, "mode=Exclusive_Process interval=Long",
			nil},
		{"undo", false, nil, []gpu.Settings{both, undo, undo}, "mode=Default", nil},
		{"an interval that is none", false, nil, []gpu.Settings{{Interval: "long"}},
			`time slice "long": want Default, Short, Medium or Long, or none to leave it alone`, nil},
		{"a mode that is none", false, nil, []gpu.Settings{{Mode: "EXCLUSIVE_THREAD"}},
			`compute mode "EXCLUSIVE_THREAD": want EXCLUSIVE_PROCESS or PROHIBITED, or none for the default`, nil},
		{"the mode of an administrator, restored", false, nil, []gpu.Settings{exclusive, {Mode: gpu.Prohibited}},
			"mode=Prohibited", nil},
		{"a GPU that is gone, the mode of an administrator", false, lost, []gpu.Settings{{Mode: gpu.Prohibited}},
			"mode=Default unplugged", nil},
		{"a GPU that was removed, the mode of an administrator", false,
			func(m *simulator.Node) error { return m.Remove("0") },
			[]gpu.Settings{{Mode: gpu.Prohibited}, {Interval: gpu.IntervalDefault, Mode: gpu.ExclusiveProcess}}, "",
			nil},
		{"an old card, an interval", true, nil, []gpu.Settings{long}, "time slice Long: it can only have Default: " +
			"the GPU does not support it", nvml.ErrNotConfigurable},
		{"an old card, exclusive", true, nil, []gpu.Settings{exclusive}, "mode=Exclusive_Process", nil},
		{"an old card, undo", true, nil, []gpu.Settings{exclusive, undo}, "mode=Default", nil},
		{"a GPU that is gone", false, lost, []gpu.Settings{long}, "time slice Long: nvidia-smi: exit status 15: " +
			"Failed to set timeslice policy with value Long for GPU 0 : GPU is lost; " +
			"Failed to set timeslice for requested devices : GPU is lost", nil},
		{"a GPU that is gone, undo", false, lost, []gpu.Settings{undo}, "mode=Default unplugged", nil},
		{"a GPU that was removed, undo", false, func(m *simulator.Node) error { return m.Remove("0") },
			[]gpu.Settings{undo}, "", nil},
		{"a card without compute modes, undo", false, func(m *simulator.Node) error {
			return m.Fail("0",
				"GetComputeMode", "ERROR_NOT_SUPPORTED")
		},
			[]gpu.Settings{long, undo}, "mode=Default", nil},
		{"a card without compute modes, exclusive", false,
			func(m *simulator.Node) error { return m.Fail("0", "GetComputeMode", "ERROR_NOT_SUPPORTED") },
			[]gpu.Settings{exclusive}, "compute mode EXCLUSIVE_PROCESS: it can only have the default: the GPU does " +
				"not support it", nvml.ErrNotConfigurable},
		{"not permitted", false, func(m *simulator.Node) error {
			return m.Fail("0", "SetComputeMode",
				"ERROR_NO_PERMISSION")
		},
			[]gpu.Settings{exclusive}, "compute mode EXCLUSIVE_PROCESS: ERROR_NO_PERMISSION", nil},
		{"the mode cannot be undone, the interval is", false, func(m *simulator.Node) error {
			return errors.Join(m.SetComputeMode("0", 3), m.SetTimeSlice("0", 3),
				m.Fail("0", "SetComputeMode", "ERROR_UNKNOWN"))
		}, []gpu.Settings{undo}, "compute mode DEFAULT: ERROR_UNKNOWN; mode=Exclusive_Process", nil},
		{"no nvidia-smi, so an interval cannot be set back", false, withSMI(""), []gpu.Settings{exclusive, undo},
			"time slice Default: nvidia-smi is in no directory for programs below ROOT: executable file not found " +
				"in $PATH; mode=Default", nil},
		{"no nvidia-smi, an interval", false, withSMI(""), []gpu.Settings{long},
			"time slice Long: nvidia-smi is in no directory for programs below ROOT: executable file not found in " +
				"$PATH", nil},
		{"nvidia-smi says no", false, withSMI("#!/bin/sh\necho no driver; echo at all; exit 9\n"), []gpu.Settings{undo},
			"time slice Default: nvidia-smi: exit status 9: no driver; at all", nil},
		{"nvidia-smi hangs", false, withSMI("#!/bin/sh\n>\"$0.runs\"; exec sleep 60\n"), []gpu.Settings{long},
			"time slice Long: nvidia-smi: context canceled", nil},
		{"nvidia-smi gets the library", false, withSMI("#!/bin/sh\n[ $LD_PRELOAD -ef " +
			"${0%/bin/nvidia-smi}/lib/x86_64-linux-gnu/libnvidia-ml.so.1 ] && " +
			"[ \"$1 $2 $4 $5\" = 'compute-policy -i --set-timeslice 2' ]"),
			[]gpu.Settings{{Interval: gpu.IntervalMedium}}, "mode=Default", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			profile, err := simulator.BuiltIn("t4-x2")
			if err == nil && tt.old {
				profile, err = simulator.ParseProfile([]byte(strings.Replace(profile.YAML(), "{major: 7, minor: 5}",
					"{major: 6, minor: 1}", 1)))
			}
			if err != nil {
				t.Fatal(err)
			}
			m, node := machineOf(t, profile)
			must(t, m.LayOut(simulator.Programs{NvidiaSMI: os.Args[0]})) // see TestMain
			look, err := node.Discover(t.Context())
			devices := look.Devices
			if err != nil {
				t.Fatal(err)
			}
			id := devices[0].UUID
			if tt.before != nil {
				if err := tt.before(m); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if strings.Contains(tt.name, "hangs") {
				go func() {
					for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
						if _, err := os.Stat(filepath.Join(m.DriverRoot(), "usr/bin/nvidia-smi.runs")); err == nil {
							cancel()
						}
					}
				}()
			}
			var got string
			for _, s := range tt.settings {
				err := node.Set(ctx, id, gpu.DesiredState{Settings: &s})
				if err != nil {
					got = err.Error()
					if tt.errorIs != nil && !errors.Is(err, tt.errorIs) {
						t.Errorf("error %v is not %v", err, tt.errorIs)
					}
				}
			}
			if got == "" || strings.Contains(tt.want, "; mode=") {
				got = strings.TrimPrefix(got+"; "+settingsOf(m, string(id)), "; ")
			}
			got = strings.NewReplacer(string(id), "UUID", m.DriverRoot(), "ROOT").Replace(got)
			if got != tt.want {
				t.Errorf("\ngot  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestUnchangedTimeSlice(t *testing.T) {
	profile, err := simulator.BuiltIn("t4-x2")
	if err != nil {
		t.Fatal(err)
	}
	m, node := machineOf(t, profile)
	look, err := node.Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := withSMI("#!/bin/sh\necho has run; exit 1\n")(m); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		settings gpu.Settings
		runs     bool
	}{
		{gpu.Settings{}, false},
		{gpu.Settings{Mode: gpu.ExclusiveProcess}, false},
		{gpu.Settings{Interval: gpu.IntervalLong}, true},
		{gpu.Settings{Interval: gpu.IntervalDefault}, true},
	} {
		err := node.Set(t.Context(), look.Devices[0].UUID, gpu.DesiredState{Settings: &tt.settings})
		if runs := err != nil && strings.Contains(err.Error(), "has run"); runs != tt.runs || err != nil && !runs {
			t.Errorf("%s: nvidia-smi runs: %t, want %t; error %v", tt.settings, runs, tt.runs, err)
		}
	}
}

// settingsOf is how the node prints what is set of the GPU, "" when it has none of that UUID.
func settingsOf(m *simulator.Node, id string) string {
	v, err := m.View()
	if err != nil {
		return err.Error()
	}
	c, err := v.GPU(id)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(v.String()) {
		if strings.HasPrefix(line, c.Name+" ") && strings.Contains(line, " mode=") {
			return strings.TrimSpace(line[strings.Index(line, "mode="):])
		}
	}
	return fmt.Sprintf("no line about %s", c.Name)
}

// withSMI replaces nvidia-smi by a script, or takes it away.
func withSMI(script string) func(m *simulator.Node) error {
	return func(m *simulator.Node) error {
		path := filepath.Join(m.DriverRoot(), "usr/bin/nvidia-smi")
		if err := os.Remove(path); err != nil || script == "" {
			return err
		}
		return os.WriteFile(path, []byte(script), 0o755)
	}
}

// Discoveries and claims are told the compute mode that an administrator has set. A failed question is no answer.
func TestComputeMode(t *testing.T) {
	m, n := machine(t, "t4-x2")
	id := first(t, n).UUID
	want := func(when string, want gpu.ComputeMode) {
		t.Helper()
		asked, err := n.ComputeMode(t.Context(), id)
		must(t, err)
		if found := first(t, n).ComputeMode; found != want || asked != want {
			t.Errorf("%s: found %q, asked %q, want %q", when, found, asked, want)
		}
	}
	want("at first", "")
	must(t, m.SetComputeMode("0", hwprofile.ComputeModeProhibited))
	want("prohibited", gpu.Prohibited)
	must(t, m.Fail("0", "GetComputeMode", "ERROR_UNKNOWN"))
	if mode, err := n.ComputeMode(t.Context(), id); err == nil || first(t, n).ComputeMode != gpu.Prohibited {
		t.Errorf("got mode %q, %v; found %q; want an error, and what was known", mode, err, first(t, n).ComputeMode)
	}
	must(t, m.Fail("0", "GetComputeMode", "ERROR_NOT_SUPPORTED"))
	want("a GPU without compute modes", "")
}
