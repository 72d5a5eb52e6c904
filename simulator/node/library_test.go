// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"bytes"
	"debug/elf"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

func TestEmptyLibrary(t *testing.T) {
	for _, soname := range []string{"libcuda.so.1", "libnvidia-gpucomp.so.580.95.05", "x"} {
		b := node.EmptyLibrary(soname, "for people")
		f, err := elf.NewFile(bytes.NewReader(b))
		must(t, err)
		names, err := f.DynString(elf.DT_SONAME)
		must(t, err)
		if got := strings.Join(names, " "); got != soname || f.Type != elf.ET_DYN {
			t.Errorf("a %s with the soname %q, want a library with %q", f.Type, got, soname)
		}
		if !strings.HasSuffix(string(b), "\nfor people\n") || len(b) > firstSlot {
			t.Errorf("%d bytes, ending in %q", len(b), b[len(b)-20:])
		}
	}
}

func TestStateFileIsALibrary(t *testing.T) {
	dir := tmpfs.Dir(t)
	open(t, dir, profile(t, "t4-x2"))
	f, err := elf.Open(node.LibraryPath(dir, "580.95.05"))
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	names, err := f.DynString(elf.DT_SONAME)
	must(t, err)
	if got, want := strings.Join(names, " "), "libnvidia-ml.so.1"; got != want {
		t.Errorf("soname %q, want %q", got, want)
	}
}
