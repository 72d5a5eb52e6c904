// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRemoveTemporary(t *testing.T) {
	dir := t.TempDir()
	hourAgo := time.Now().Add(-time.Hour)
	for name, when := range map[string]time.Time{".cdi-hooks123": hourAgo, ".health.json45": hourAgo,
		".devices.json6": time.Now(), ".let-go-nvml7": time.Now().Add(time.Hour), "health.json": hourAgo,
		"dra-1.sock": hourAgo, ".hidden": hourAgo} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, when, when); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeTemporary(dir, abandonedAfter); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if got := strings.Join(left, " "); got != ".devices.json6 .hidden dra-1.sock health.json" {
		t.Errorf("got %s, want the young one and those that are not temporary", got)
	}
}
