// SPDX-License-Identifier: Apache-2.0

// Package hack_test tests the scripts of this folder.
package hack_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestPrerequisites(t *testing.T) {
	everything := map[string]string{"uname": "echo Linux", "id": "echo 0", "git": "", "make": "", "gcc": "",
		"go": "echo go1.26.8"}
	for _, tc := range []struct {
		name   string
		change map[string]string // program → what it does; "missing" takes it away
		args   []string
		want   []string // the beginning of each line; none: all is well
	}{
		{"all is there", nil, []string{"root"}, nil},
		{"not root, where root is needed", map[string]string{"id": "echo 1000"}, []string{"root"},
			[]string{"This needs root"}},
		{"not root, where it is not needed", map[string]string{"id": "echo 1000"}, nil, nil},
		{"no compiler", map[string]string{"gcc": "missing"}, nil, []string{"gcc is missing"}},
		{"no compiler for the other processor of a release", nil, []string{"dist"},
			[]string{"aarch64-linux-gnu-gcc is missing"}},
		{"several things are missing, each is named", map[string]string{"git": "missing", "make": "missing",
			"go": "missing"}, nil,
			[]string{"git is missing", "make is missing", "Go is missing"}},
		{"Go is too old", map[string]string{"go": "echo go1.25.3"}, nil, []string{"Go is too old (go1.25.3)"}},
		{"Go is newer", map[string]string{"go": "echo go1.30"}, nil, nil},
		{"Go is a release candidate", map[string]string{"go": "echo go1.26rc1"}, nil, nil},
		{"Go is built from source", map[string]string{"go": "echo 'devel go1.28-abcdef'"}, nil, nil},
		{"not Linux", map[string]string{"uname": "echo Darwin"}, nil, []string{"This needs Linux"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bin := t.TempDir()
			for name, script := range everything {
				if changed, ok := tc.change[name]; ok {
					script = changed
				}
				if script == "missing" {
					continue
				}
				if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"prerequisites.sh"}, tc.args...)...)
			cmd.Env = []string{"PATH=" + bin}
			output, err := cmd.CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(output)), "\n")
			if len(tc.want) == 0 {
				if err != nil || len(output) > 0 {
					t.Errorf("got %v and %q, want nothing", err, output)
				}
				return
			}
			if err == nil {
				t.Error("got success, want a failure")
			}
			if len(lines) != len(tc.want) {
				t.Fatalf("got\n%s\nwant %d lines", output, len(tc.want))
			}
			for i, want := range tc.want {
				if !strings.HasPrefix(lines[i], want) {
					t.Errorf("line %d: got %q, want %q", i+1, lines[i], want)
				}
			}
		})
	}
}
