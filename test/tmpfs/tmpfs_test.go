// SPDX-License-Identifier: Apache-2.0

package tmpfs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// A test can run programs in its directory, which is gone afterwards.
func TestDir(t *testing.T) {
	var dirs [2]string
	t.Run("a test", func(t *testing.T) {
		for i := range dirs {
			dirs[i] = tmpfs.Dir(t)
			program := filepath.Join(dirs[i], "program")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.CommandContext(t.Context(), "sh", "-c", program).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
	})
	if dirs[0] == dirs[1] {
		t.Errorf("got the directory %s twice", dirs[0])
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}
}
