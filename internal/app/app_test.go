// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
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

func TestInstallHook(t *testing.T) {
	source, dir := filepath.Join(t.TempDir(), "nvidia-cdi-hook"), t.TempDir()
	if _, err := installHook(source, dir); err == nil || !strings.Contains(err.Error(), "--cdi-hook") {
		t.Errorf("without a program: got %v", err)
	}
	for _, content := range []string{"one", "one", "two"} {
		if err := os.WriteFile(source, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		path, err := installHook(source, dir)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Errorf("got %q, %v, want %q", got, err, content)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("mode %v, %v, want 0755", info.Mode(), err)
		}
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

func TestCheckTakesThePluginsEnvironment(t *testing.T) {
	t.Setenv("DRIVER_ROOT", "/run/nvidia/driver")
	t.Setenv("DRIVER_ROOT_MOUNT", "/nowhere")
	if text, _ := runCommand(t, "check"); !strings.Contains(text, "/run/nvidia/driver (seen here as /nowhere)") {
		t.Errorf("got:\n%s", text)
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
