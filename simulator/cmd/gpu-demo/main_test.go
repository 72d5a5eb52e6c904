// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestVerdict(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"an open that succeeds", nil, "allowed"},
		{"no driver behind the node", unix.ENXIO, "allowed"},
		{"the device cgroup refuses", unix.EPERM, "denied (EPERM)"},
		{"no such node", unix.ENOENT, "ENOENT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := verdict(tc.err); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestShow(t *testing.T) {
	const smi = "#!/bin/sh\necho \"GPU 0: NVIDIA T4 (UUID: GPU-1) $1\"\n"
	for _, tc := range []struct {
		name  string
		smi   string // text of the program nvidia-smi; empty: there is none
		nodes []string
		want  string
	}{
		{"a container without a claim", "", nil, "no nvidia-smi in this container\nno GPU device node in DIR\n"},
		{"nodes are ordered by number and control nodes left out", smi, []string{"nvidia10", "nvidia2", "nvidiactl",
			"nvidia-uvm"},
			"GPU 0: NVIDIA T4 (UUID: GPU-1) -L\nDIR/nvidia2: allowed\nDIR/nvidia10: allowed\n"},
		{"a container with a partition", smi, []string{"nvidia0", "nvidia-caps/nvidia-cap1260",
			"nvidia-caps/nvidia-cap358"},
			"GPU 0: NVIDIA T4 (UUID: GPU-1) -L\nDIR/nvidia0: allowed\nDIR/nvidia-caps/nvidia-cap358: " +
				"allowed\nDIR/nvidia-caps/nvidia-cap1260: allowed\n"},
		{"nvidia-smi fails", "#!/bin/sh\necho no driver; exit 9\n", nil,
			"nvidia-smi -L: exit status 9\nno driver\nno GPU device node in DIR\n"},
		{"nvidia-smi finds nothing", "#!/bin/sh\n", nil, "nvidia-smi -L lists no GPU\nno GPU device node in DIR\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, bin := t.TempDir(), t.TempDir()
			t.Setenv("PATH", bin)
			if err := os.Mkdir(filepath.Join(dir, "nvidia-caps"), 0o755); err != nil {
				t.Fatal(err)
			}
			if tc.smi != "" {
				write(t, filepath.Join(bin, "nvidia-smi"), tc.smi)
			}
			for _, node := range tc.nodes {
				write(t, filepath.Join(dir, node), "")
			}
			var out strings.Builder
			if err := show(t.Context(), dir, &out); err != nil {
				t.Fatal(err)
			}
			if got := strings.ReplaceAll(out.String(), dir, "DIR"); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "b"), "")
	write(t, filepath.Join(dir, "a"), "")
	for _, tc := range []struct {
		name    string
		args    []string
		want    string
		wantErr string
	}{
		{"no arguments", nil, "", "unknown arguments"},
		{"a misspelt command", []string{"shwo"}, "", "unknown arguments"},
		{"a misspelt flag", []string{"show", "--sty"}, "", "unknown arguments"},
		{"help", []string{"help"}, usage, ""},
		{"a major that is no number", []string{"open", "x", "1"}, "", `major "x"`},
		{"a minor that is no number", []string{"open", "1", "x"}, "", `minor "x"`},
		{"a short sleep ends", []string{"sleep", "1ms"}, "", ""},
		{"a duration without unit", []string{"sleep", "1"}, "", `duration "1"`},
		{"files by name, a missing directory is empty", []string{"find", dir + "/none", dir}, dir + "/a\n" + dir +
			"/b\n", ""},
		{"a device node with its numbers", []string{"find", "/dev/null"}, "/dev/null 1:3\n", ""},
		{"a file goes", []string{"rm", dir + "/a"}, "", ""},
		{"a file that is not there", []string{"rm", dir + "/a"}, "", "remove " + dir + "/a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			err := run(t.Context(), tc.args, &out)
			if got := out.String(); got != tc.want {
				t.Errorf("output: got %q, want %q", got, tc.want)
			}
			switch {
			case err == nil && tc.wantErr != "":
				t.Errorf("got no error, want %q", tc.wantErr)
			case err != nil && (tc.wantErr == "" || !strings.Contains(err.Error(), tc.wantErr)):
				t.Errorf("got error %q, want %q", err, tc.wantErr)
			}
		})
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := run(ctx, []string{"sleep"}, nil); err != nil {
		t.Error(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
