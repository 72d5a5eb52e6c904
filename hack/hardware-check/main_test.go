// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/internal/check"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator"
	simmps "github.com/gpudra/gpu-dra-driver/simulator/mps"
	"github.com/gpudra/gpu-dra-driver/simulator/smi"
)

// TestMain lets the test binary act as the programs of simulated GPUs, and as an MPS client.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == cudaClient {
		runCUDAClient(os.Args[2], os.Stdin, os.Stdout)
		return
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	switch filepath.Base(self) {
	case "nvidia-smi":
		os.Exit(smi.Run(smi.Here(), os.Args[1:], time.Now(), os.Stdout, os.Stderr))
	case "nvidia-cuda-mps-control":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		code := simmps.Program{Path: self, Args: os.Args[1:], Env: os.Getenv, In: os.Stdin, Out: os.Stdout,
			Err: os.Stderr}.Run(ctx)
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// simulated returns a simulated machine and the options that check it.
func simulated(t *testing.T, profile string) (*simulator.Node, options) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	p, err := simulator.BuiltIn(profile)
	must(t, err)
	n, err := simulator.Open(t.TempDir(), p)
	must(t, err)
	must(t, n.LayOut(simulator.Programs{NvidiaSMI: os.Args[0], MPSControl: os.Args[0]}))
	hook := filepath.Join(t.TempDir(), "nvidia-cdi-hook")
	must(t, os.WriteFile(hook, nil, 0o600))
	programs, err := build()
	must(t, err)
	return n, options{
		plugin: filepath.Join(programs, "dra-kubelet-plugin"), simulation: filepath.Join(programs,
			"dra-kubelet-plugin-sim"),
		simulateDir: n.Dir(), hook: hook, runtime: "no-runtime", rootfs: t.TempDir(),
	}
}

// build builds the driver's programs and returns their directory. They stay, so that Go does not link them again.
var build = sync.OnceValues(func() (string, error) {
	dir, err := filepath.Abs("../../_output/test")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/",
		"../../cmd/dra-kubelet-plugin", "../../simulator/cmd/dra-kubelet-plugin-sim").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return dir, nil
})

// runtimeOf returns a fake OCI runtime: it prints what nvidia-smi would print in a container with the device node, and
// refuses a device that the container may not use.
func runtimeOf(t *testing.T, n *simulator.Node) string {
	t.Helper()
	v, err := n.View()
	must(t, err)
	path := filepath.Join(t.TempDir(), "runtime")
	script := fmt.Sprintf(`#!/bin/sh
[ "$1 $2" = "run --bundle" ] || exit 2
if grep -q '"destination":"/dev/probe"' "$3/config.json"; then
	echo "the container has started"
	echo "sh: can't open /dev/probe: Operation not permitted"
	exit 1
fi
grep -q '"path":"/dev/%s"' "$3/config.json" || { echo "No devices were found"; exit 6; }
echo "GPU 0: x (UUID: %s)"
`, v.GPUs[0].DeviceNode(), v.GPUs[0].UUID)
	must(t, os.WriteFile(path, []byte(script), 0o700))
	return path
}

// checkOutput takes all steps and returns the report.
func checkOutput(t *testing.T, o options) (string, error) {
	t.Helper()
	var out strings.Builder
	err := run(t.Context(), o, &out)
	return out.String(), err
}

func requireLines(t *testing.T, report string, lines ...string) {
	t.Helper()
	for _, want := range lines {
		if !strings.Contains(report, want) {
			t.Errorf("%q is not in:\n%s", want, report)
		}
	}
}

func TestTheWholeCheckOnSimulatedGPUs(t *testing.T) {
	for _, profile := range []string{"t4-x2", "hgx-h200", "mixed"} {
		t.Run(profile, func(t *testing.T) {
			n, o := simulated(t, profile)
			o.runtime, o.out, o.allowChanges = runtimeOf(t, n), t.TempDir(), true
			report, err := checkOutput(t, o)
			if err != nil {
				t.Errorf("%v:\n%s", err, report)
			}
			requireLines(t, report, "0 failed",
				"| verified | dra-kubelet-plugin record |", "| verified | the recording, simulated | it publishes "+
					"the same slices |",
				"| verified | nvidia-smi -q -x: cudaComputeCapability |", "| verified | nvidia-smi -q -x: memory |",
				"| skipped | other published values | nvidia-smi -q -x has none of them: fabricDomain, ",
				"| verified | a container with a GPU |", "| verified | a container without a claim | it cannot open",
				"| verified | an MPS daemon with limits | started",
				"| verified | an MPS daemon for several users | it was started with -multiuser-server |",
				"| verified | an MPS server before the first client | after start_server -uid 0, server ",
				"| verified | two MPS clients with limits at once | users 0 and 0: each got 512 MiB of its limit of "+
					"2048 MiB, and nothing above it |",
				"| verified | an MPS client with a limit of a GPU that it does not see | it has no limit, as "+
					"docs/use/sharing.md says |",
				`| verified | limits of MPS, read back | set and printed: 30: "30.0", 50: "50.0", 100: "100.0", `+
					`512M: "512M", 3000M: "2G", 5120M: "5G", 1048576M: "1024G" |`,
				"| verified | nvidia-smi compute-policy --set-timeslice |")
			v, err := n.View()
			must(t, err)
			for _, c := range v.GPUs {
				if c.State.TimeSlice != 0 || c.State.ComputeMode != 0 || len(c.State.Processes) > 0 {
					t.Errorf("%s was left with %+v", c.Name, c.State)
				}
			}
			for _, file := range []string{"report.md", "check.json", "recording.yaml"} {
				content, err := os.ReadFile(filepath.Join(o.out, file))
				if err != nil || len(content) == 0 {
					t.Errorf("%s: %d bytes, %v", file, len(content), err)
				}
				if file == "recording.yaml" && strings.Contains(string(content), v.GPUs[0].UUID) {
					t.Error("the recording is not masked")
				}
			}
		})
	}
}

func TestWhatCannotBeCheckedIsSkippedWithTheReason(t *testing.T) {
	n, o := simulated(t, "t4-x2")
	must(t, os.RemoveAll(filepath.Join(n.DriverRoot(), "usr/bin")))
	report, err := checkOutput(t, o)
	if err != nil {
		t.Error(err)
	}
	requireLines(t, report, "| skipped | nvidia-smi -q -x | the driver root has no nvidia-smi |",
		`| skipped | a container with a GPU | exec: "no-runtime"`,
		"| skipped | an MPS daemon with limits | the driver root has no nvidia-cuda-mps-control |",
		"| skipped | two MPS clients with limits at once | the driver root has no nvidia-cuda-mps-control |",
		"| skipped | nvidia-smi -c | it changes settings: -allow-changes |")
}

func TestWhatIsNotAsPublishedFails(t *testing.T) {
	n, o := simulated(t, "t4-x2")
	// Replace nvidia-smi: this one reports another amount of memory.
	program, output := filepath.Join(n.DriverRoot(), "usr/bin/nvidia-smi"), filepath.Join(t.TempDir(), "said")
	text, err := exec.CommandContext(t.Context(), program, "-q", "-x").Output()
	must(t, err)
	must(t, os.WriteFile(output, []byte(strings.ReplaceAll(string(text), "15360 MiB", "16384 MiB")), 0o600))
	must(t, os.Remove(program))
	must(t, os.WriteFile(program, []byte("#!/bin/sh\ncat "+output+"\n"), 0o700))
	report, err := checkOutput(t, o)
	if !errors.Is(err, errFailed) {
		t.Errorf("got %v", err)
	}
	requireLines(t, report,
		`| FAILED | nvidia-smi -q -x: memory | GPU 0: "15360" is published, nvidia-smi says "16384"`)
}

// TestSettingsInUse: the check neither changes nor resets settings that a claim or an administrator has made.
func TestSettingsInUse(t *testing.T) {
	for _, row := range []struct {
		name string
		set  func(n *simulator.Node) error
		want string // the reason, time slice and compute mode afterwards
	}{
		{"a compute mode", func(n *simulator.Node) error {
			return n.SetComputeMode("0", hwprofile.ComputeModeExclusiveProcess)
		}, "somebody uses gpu-3b-00-0: its compute mode is Exclusive_Process\nDefault Exclusive_Process"},
		{"a time slice", func(n *simulator.Node) error { return n.SetTimeSlice("0", 3) },
			"somebody uses gpu-3b-00-0: its time slice is Long\nLong Default"},
	} {
		t.Run(row.name, func(t *testing.T) {
			n, o := simulated(t, "t4-x2")
			o.allowChanges = true
			must(t, row.set(n))
			e := &checker{options: o, dir: t.TempDir()}
			e.driverCheck(t.Context())
			e.lines = nil
			e.settings(t.Context())
			v, err := n.View()
			must(t, err)
			after := fmt.Sprintf("%s %s", v.GPUs[0].State.TimeSlice, v.GPUs[0].State.ComputeMode)
			for _, l := range e.lines {
				if got := l.detail + "\n" + after; l.result != skipped || got != row.want {
					t.Errorf("%s: %s: got\n%s\nwant skipped:\n%s", l.what, l.result, got, row.want)
				}
			}
		})
	}
}

// TestOldNvidiaSMI: nvidia-smi before R510 does not know the field compute_cap.
func TestOldNvidiaSMI(t *testing.T) {
	program := filepath.Join(t.TempDir(), "nvidia-smi")
	must(t, os.WriteFile(program, []byte(`#!/bin/sh
[ "$1" = -q ] || exit 2
echo "<nvidia_smi_log><gpu><uuid>GPU-0</uuid></gpu><gpu><uuid>GPU-1</uuid></gpu></nvidia_smi_log>"
`), 0o700))
	e := &checker{report: check.Report{Driver: check.Driver{NvidiaSMI: program}}}
	log, err := e.askSMI(t.Context())
	must(t, err)
	got := ""
	for _, g := range log.GPUs {
		got += fmt.Sprintf("%s has index %d, capability %q\n", g.UUID, g.index, g.capability)
	}
	if want := "GPU-0 has index 0, capability \"\"\nGPU-1 has index 1, capability \"\"\n"; got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

func TestAGPUThatIsLost(t *testing.T) {
	n, o := simulated(t, "t4-x2")
	must(t, n.Unplug("1"))
	report, err := checkOutput(t, o)
	if !errors.Is(err, errFailed) {
		t.Errorf("got %v", err)
	}
	requireLines(t, report, "| FAILED | dra-kubelet-plugin check | gpu-lost: GPU 1: get handle: ")
}
