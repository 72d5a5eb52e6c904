// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestInstalledHelm(t *testing.T) {
	for version, want := range map[string]bool{"v4.3.1": true, "v4.0.0+g99cd196": true, "v3.18.6+gb76a950": false,
		"": false} {
		dir := t.TempDir()
		path := filepath.Join(dir, "helm")
		script := fmt.Sprintf("#!/bin/sh\n[ \"$1 $2\" = 'version --short' ] && echo '%s'\n", version)
		if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir)
		if got, ok := installedHelm(t.Context()); got != path || ok != want {
			t.Errorf("%s: got %s, %t", version, got, ok)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, ok := installedHelm(t.Context()); ok {
		t.Error("without helm: want none")
	}
}
