// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	t.Setenv("POD_UID", "")
	for _, row := range []struct{ name, args, want string }{
		{"a server without an engine", "serve --pod-uid uid", "requires at least 1 arg(s), only received 0"},
		{"a server without its UID", "serve -- engine", "--pod-uid is required: the UID of this pod"},
		{"an unknown engine", "serve --pod-uid uid --engine lupin -- engine",
			`engine "lupin": unknown; known are: lupine`},
		{"a node without its name", "node --plugin-dir /a --client-dir /b --listen :0",
			`required flag(s) "node-name" not set`},
		{"nothing to copy", "copy /directory", "requires at least 2 arg(s), only received 1"},
	} {
		cmd := command()
		cmd.SetArgs(strings.Fields(row.args))
		cmd.SetErr(io.Discard)
		if err := cmd.Execute(); err == nil || err.Error() != row.want {
			t.Errorf("%s: got %v, want %s", row.name, err, row.want)
		}
	}
}

func TestCopy(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "made", "lib")
	if err := os.WriteFile(filepath.Join(from, "libcuda.so.1.2"), []byte("library"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("libcuda.so.1.2", filepath.Join(from, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := copyFiles([]string{from + "/*.so.1"}, to); err != nil {
			t.Fatal(err)
		}
	}
	copied := filepath.Join(to, "libcuda.so.1")
	text, err := os.ReadFile(copied)
	if err != nil || string(text) != "library" {
		t.Errorf("got %q, %v, want what the link names", text, err)
	}
	if info, err := os.Lstat(copied); err != nil || info.Mode() != 0o755 {
		t.Errorf("got %v, %v, want a file with mode 0755", info.Mode(), err)
	}
	want := "copy " + from + "/*.so.2: no such file in this image"
	if err := copyFiles([]string{from + "/*.so.1", from + "/*.so.2"}, to); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
