// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
)

// TestLeave: the last instance removes the metadata that a killed one has left of a released claim.
func TestLeave(t *testing.T) {
	dir := filepath.Join(t.TempDir(), driver)
	instance, err := Enter(dir)
	if err != nil {
		t.Fatal(err)
	}
	records, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, metadataDir, "ns_c/r")
	if err := errors.Join(os.MkdirAll(left, 0o755),
		os.WriteFile(filepath.Join(left, "metadata.json"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	instance.Leave(t.Context(), records, records.Remove)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		entries, _ := os.ReadDir(dir)
		t.Errorf("left: %v, error %v", entries, err)
	}
}
