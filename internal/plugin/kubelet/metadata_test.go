// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "metadata.json")
	for _, content := range []string{"one", "two"} {
		if err := replaceFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != content {
			t.Errorf("got %q, %v, want %q", got, err, content)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("got mode %v, %v, want 0644", info.Mode(), err)
	}
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := replaceFile(filepath.Join(dir, "taken"), nil, 0o644); err == nil {
		t.Error("replaced a directory")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("got %v, %v, want no temporary files", entries, err)
	}
}
