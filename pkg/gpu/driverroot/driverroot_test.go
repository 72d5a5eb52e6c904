// SPDX-License-Identifier: Apache-2.0

package driverroot_test

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
)

// create creates files, and links for names with an arrow, below a new root.
func create(t *testing.T, names []string) driverroot.Root {
	t.Helper()
	root := t.TempDir()
	for _, name := range names {
		name, target, isLink := strings.Cut(name, " -> ")
		path := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if isLink {
			err = errors.Join(err, os.Symlink(target, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, nil, 0o755))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return driverroot.Root{Host: "/run/nvidia/driver", Here: root}
}

func TestLayouts(t *testing.T) {
	for _, row := range []struct {
		name             string
		files            []string
		library, program string // what is found; an error if it begins with its text
	}{
		{"NVIDIA's installer on Red Hat", []string{"usr/lib64/libnvidia-ml.so.1 -> libnvidia-ml.so.580.95.05",
			"usr/lib64/libnvidia-ml.so.580.95.05", "usr/bin/nvidia-smi"},
			"usr/lib64/libnvidia-ml.so.580.95.05", "usr/bin/nvidia-smi"},
		{"a driver container, whose lib is a link", []string{"lib -> usr/lib", "bin -> usr/bin",
			"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "usr/bin/nvidia-smi"},
			"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "usr/bin/nvidia-smi"},
		{"Debian: absolute links are resolved inside the root", []string{
			"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 -> /etc/alternatives/nvidia--libnvidia-ml.so.1",
			"etc/alternatives/nvidia--libnvidia-ml.so.1 -> /usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1",
			"usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1 -> libnvidia-ml.so.550.163.01",
			"usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.550.163.01",
			"usr/bin/nvidia-smi -> /etc/alternatives/nvidia--nvidia-smi",
			"etc/alternatives/nvidia--nvidia-smi -> /usr/lib/nvidia/current/nvidia-smi",
			"usr/lib/nvidia/current/nvidia-smi"},
			"usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.550.163.01", "usr/lib/nvidia/current/nvidia-smi"},
		{"a dangling link does not hide another directory", []string{
			"usr/lib64/libnvidia-ml.so.1 -> libnvidia-ml.so.1.1", "lib64/libnvidia-ml.so.1",
			"usr/bin/nvidia-smi -> /nowhere", "usr/local/bin/nvidia-smi"},
			"lib64/libnvidia-ml.so.1", "usr/local/bin/nvidia-smi"},
		{"GKE", []string{"lib64/libnvidia-ml.so.1", "bin/nvidia-smi"}, "lib64/libnvidia-ml.so.1", "bin/nvidia-smi"},
		{"Talos", []string{"usr/local/glibc/usr/lib/libnvidia-ml.so.1", "usr/local/bin/nvidia-smi"},
			"usr/local/glibc/usr/lib/libnvidia-ml.so.1", "usr/local/bin/nvidia-smi"},
		{"two versions: the link counts", []string{"usr/lib64/libnvidia-ml.so.1 -> libnvidia-ml.so.570.1",
			"usr/lib64/libnvidia-ml.so.570.1", "usr/lib64/libnvidia-ml.so.580.1"},
			"usr/lib64/libnvidia-ml.so.570.1",
			"nvidia-smi is in no directory for programs below ROOT: executable file not found in $PATH"},
		{"nothing", nil, "libnvidia-ml.so.1 is in no library directory below ROOT: no NVIDIA driver: install the " +
			"driver below /run/nvidia/driver of the host, or name the directory that has it (--driver-root)",
			"nvidia-smi is in no directory for programs below ROOT: executable file not found in $PATH"},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := create(t, row.files)
			show := func(path string, err, want error) string {
				if err != nil {
					if !errors.Is(err, want) {
						t.Errorf("%v is not %v", err, want)
					}
					return strings.ReplaceAll(err.Error(), d.Here, "ROOT")
				}
				relative, err := filepath.Rel(d.Here, path)
				if err != nil {
					t.Fatal(err)
				}
				return relative
			}
			library, err := d.Library()
			if diff := cmp.Diff(row.library, show(library, err, driverroot.ErrNoDriver)); diff != "" {
				t.Errorf("library: want - got +\n%s", diff)
			}
			program, err := d.Program("nvidia-smi")
			if diff := cmp.Diff(row.program, show(program, err, exec.ErrNotFound)); diff != "" {
				t.Errorf("program: want - got +\n%s", diff)
			}
		})
	}
}

func TestLibraries(t *testing.T) {
	d := create(t, []string{"usr/lib64/libcuda.so.1 -> libcuda.so.580.1", "usr/lib64/libcuda.so.580.1",
		"lib64/libcuda.so.1", "usr/lib/libnvidia-cfg.so.1 -> /usr/lib64/other", "usr/lib64/other",
		"lib64/libnvidia-gone.so.1 -> gone", "usr/lib64/libc.so.6"})
	found, err := d.Libraries("libcuda*.so*", "libnvidia-*.so*")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, name := range slices.Sorted(maps.Keys(found)) {
		got = append(got, name+" "+strings.TrimPrefix(found[name], d.Here))
	}
	want := []string{"libcuda.so.1 /usr/lib64/libcuda.so.580.1", "libcuda.so.580.1 /usr/lib64/libcuda.so.580.1",
		"libnvidia-cfg.so.1 /usr/lib64/other"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}
