// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpudra/gpu-dra-driver/pkg/health"
)

func TestFlagsFromTheEnvironment(t *testing.T) {
	for _, row := range []struct {
		name string
		args []string
		env  map[string]string
		want string
	}{
		{"a variable sets its flag", nil, map[string]string{"NODE_NAME": "n1"}, "n1 10s"},
		{"the command line wins", []string{"--node-name=n2"}, map[string]string{"NODE_NAME": "n1", "GPU_TIMEOUT": "5s"},
			"n2 5s"},
		{"a bad value names the variable", nil, map[string]string{"GPU_TIMEOUT": "soon"},
			"environment variable GPU_TIMEOUT: "},
	} {
		t.Run(row.name, func(t *testing.T) {
			for name, value := range row.env {
				t.Setenv(name, value)
			}
			var o options
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			o.addFlags(flags)
			if err := flags.Parse(row.args); err != nil {
				t.Fatal(err)
			}
			var got string
			if err := fromEnvironment(flags); err != nil {
				got = err.Error()
			} else {
				got = o.nodeName + " " + o.gpuTimeout.String()
			}
			if !strings.HasPrefix(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

// runCommand runs the program of NVIDIA's platform, and returns its output and exit code.
func runCommand(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := Command("dra-kubelet-plugin", &NVIDIA{})
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SilenceErrors = true
	cmd.SetArgs(args)
	code := ExitCode(cmd.Execute(), &out)
	return out.String(), code
}

// Nothing is buffered, and each flush wakes an idle plugin.
func TestLogsAreFlushedRarely(t *testing.T) {
	flag := Command("dra-kubelet-plugin", &NVIDIA{}).Flags().Lookup("log-flush-frequency")
	if flag == nil || flag.DefValue != "1m0s" {
		t.Errorf("got %+v, want the default 1m0s", flag)
	}
}

func TestCheckTakesThePluginsEnvironment(t *testing.T) {
	t.Setenv("DRIVER_ROOT", "/run/nvidia/driver")
	t.Setenv("DRIVER_ROOT_MOUNT", "/nowhere")
	if text, _ := runCommand(t, "check"); !strings.Contains(text, "/run/nvidia/driver (seen here as /nowhere)") {
		t.Errorf("got:\n%s", text)
	}
}

// TestOpenNVML: the plugin answers a request to open NVML with the reason for which NVML is closed now.
func TestOpenNVML(t *testing.T) {
	const replaced = "the label nvidia.com/gpu.deploy.driver of this node says paused-for-driver-upgrade"
	asked := health.ReleaseAnswer(time.Date(2026, 11, 22, 12, 1, 0, 0, time.UTC))
	for _, row := range []struct {
		name, before, after string // why NVML is closed
		code                int
		want                string
	}{
		{"on request", asked, "", 0, "NVML is open.\n"},
		{"not at all", "", "", 0, "NVML is open.\n"},
		{"the driver is replaced", replaced, replaced, 1, "Error: NVML stays closed: " + replaced + "\n"},
		{"on request while the driver is replaced", asked, replaced, 1,
			"Error: NVML stays closed: " + replaced + "\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			save := func(why string) error { return health.Saved{Release: why}.Save(dir) }
			if err := errors.Join(save(row.before), health.RequestRelease(dir, time.Now(), time.Hour)); err != nil {
				t.Fatal(err)
			}
			answered := make(chan error, 1)
			go func() {
				for !health.ReleaseRequest(dir, time.Now()).IsZero() {
					time.Sleep(time.Millisecond)
				}
				answered <- save(row.after)
			}()
			got, code := runCommand(t, "health", "--plugin-dir", dir, "--open-nvml")
			if code != row.code || got != row.want {
				t.Errorf("got exit code %d and\n%swant %d and\n%s", code, got, row.code, row.want)
			}
			if err := <-answered; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestExitCodes(t *testing.T) {
	for _, row := range []struct {
		name string
		args string
		code int
		want string
	}{
		{"no driver", "check --driver-root /nowhere --driver-root-mount /nowhere", 1, "error no-library"},
		{"nothing to record", "record --driver-root /nowhere --driver-root-mount /nowhere", 1,
			"Error: libnvidia-ml.so.1 is in no library directory below /nowhere"},
		{"simulated GPUs are not of this program", "check --simulate-dir /nowhere", 2,
			"Error: unknown flag: --simulate-dir"},
		{"NVML closed for no time", "health --plugin-dir /nowhere --close-nvml 0s", 2,
			"Error: --close-nvml 0s: want at least 1s, such as 5m; --open-nvml opens NVML"},
		{"NVML closed for less than none", "health --plugin-dir /nowhere --close-nvml -1m", 2,
			"Error: --close-nvml -1m0s: want at least 1s"},
		{"no GPU to clear", "health --plugin-dir /nowhere --clear=", 1,
			"Error: --clear : no such GPU; this node has none"},
		{"no flag", "health --plugin-dir /nowhere", 0, "The plugin has not looked at the GPUs of this node yet."},
	} {
		t.Run(row.name, func(t *testing.T) {
			text, code := runCommand(t, strings.Fields(row.args)...)
			if code != row.code || !strings.Contains(text, row.want) {
				t.Errorf("exit code %d, want %d, and %q in:\n%s", code, row.code, row.want, text)
			}
		})
	}
}

func TestWrongFlags(t *testing.T) {
	for _, row := range []struct{ args, err string }{
		{"", ""},
		{"--idle-after=30m --metrics-container-usage", ""},
		{"--idle-after=1s --metrics-container-usage", "--idle-after 1s: must be 0 or at least 5s, such as 30m"},
		{"--idle-after=30m", "--idle-after 30m0s: needs --metrics-container-usage"},
		{"--local-ipc-size=0", ""},
		{"--local-ipc-size=64", "--local-ipc-size 64: must be 0 or at least 1Mi, such as 64Mi"},
		{"--idle-below=0", "--idle-below 0: must be from 1 to 100"},
		{"--partition-requests=ns/name", ""},
		{"--partition-requests=name", "--partition-requests name: must be the namespace and the name of a ConfigMap, " +
			"such as gpu-dra-driver/partition-requests"},
	} {
		var o options
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.addFlags(flags)
		if err := flags.Parse(append(strings.Fields(row.args), "--node-name=node")); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := o.complete(); err != nil {
			got = err.Error()
		}
		if got != row.err {
			t.Errorf("%s: got %q, want %q", row.args, got, row.err)
		}
	}
}
