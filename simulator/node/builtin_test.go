// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

var update = flag.Bool("update", false, "write the golden files")

func TestBuiltInProfilesAsText(t *testing.T) {
	want := "a16-x4 a30-x2 dgx-a100 dgx-h100 dgx1-v100 gb200-nvl4 hgx-b200 hgx-h200 l40s-x4 mixed " +
		"rtx2080ti-x4 rtxpro6000-x2 t4-x2 vgpu-guest workstation"
	if got := strings.Join(node.Names(), " "); got != want {
		t.Errorf("profiles %s, want %s", got, want)
	}
	for _, name := range node.Names() {
		t.Run(name, func(t *testing.T) {
			n := open(t, tmpfs.Dir(t), profile(t, name))
			golden(t, name+".txt", n.String())
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func profile(t *testing.T, name string) hwprofile.Profile {
	t.Helper()
	p, err := node.BuiltIn(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func open(t *testing.T, dir string, p hwprofile.Profile) *node.Node {
	t.Helper()
	n, err := node.Open(dir, p)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
