// SPDX-License-Identifier: Apache-2.0

package jsonfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestReadAndWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "value.json")
	var got map[string]int
	if err := Read(path, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v before anything was written, want fs.ErrNotExist", err)
	}
	for _, n := range []int{1, 2} {
		if err := Write(path, map[string]int{"n": n}); err != nil {
			t.Fatal(err)
		}
		if err := Read(path, &got); err != nil || got["n"] != n {
			t.Errorf("got %v, %v; want n=%d", got, err, n)
		}
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Read(path, &got); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v for half a file, want an error of its own", err)
	}
}
