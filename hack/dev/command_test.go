// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCommandOutput(t *testing.T) {
	for _, tc := range []struct {
		name    string
		script  string
		want    string
		wantErr []string
	}{
		{"stdout without the final newline", "echo a; echo b", "a\nb", nil},
		{"a failure names the program, its status and its stderr", "echo cannot >&2; exit 3", "",
			[]string{"sh -c", "exit status 3", "cannot"}},
		{"warnings of a program that succeeds are no output", "echo warning >&2; echo a", "a", nil},
		{"the environment is added to", "echo $HOME_OF_TEST", "here", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := command{args: []string{"sh", "-c", tc.script}, env: []string{"HOME_OF_TEST=here"}}.output(
				t.Context())
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if (err != nil) != (tc.wantErr != nil) {
				t.Fatalf("got error %v, want %q", err, tc.wantErr)
			}
			for _, want := range tc.wantErr {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got error %q, want %q in it", err, want)
				}
			}
		})
	}
}

func TestDigest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "images.tar")
	digests := map[string]bool{}
	for _, content := range []string{"a", "b", "a"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := digest(file)
		if err != nil {
			t.Fatal(err)
		}
		digests[got] = true
	}
	if got := len(digests); got != 2 {
		t.Errorf("got %d digests of two contents, want 2", got)
	}
}

func TestRun(t *testing.T) {
	for _, args := range [][]string{nil, {"dmeo"}, {"demo", "twice"}, {"e2e", "-kubeconfig", ""},
		{"demo-down", "-kubeconfig", "x"}} {
		if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), "usage") {
			t.Errorf("run %q: got error %v, want the usage", args, err)
		}
	}
}

func TestRecap(t *testing.T) {
	var r recap
	for piece := range strings.SplitSeq("=== RUN   TestA|\n    a_test.go:3: it is |broken\n        below\n--- FAIL: "+
		"TestA (1s)\n{\"log\":1}\n    --- FAIL: TestA/b\n        b_test.go:9: that too\n", "|") {
		if _, err := r.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	const want = "    a_test.go:3: it is broken\n        below\n        b_test.go:9: that too\n"
	if got := r.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
