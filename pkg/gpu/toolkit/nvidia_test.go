// SPDX-License-Identifier: Apache-2.0

package toolkit_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/test/nvidia"
)

// arranged returns a root with empty files of the packages' names in two directories.
func arranged(t *testing.T, packages, libraries, programs string) string {
	t.Helper()
	root := t.TempDir()
	must(t, errors.Join(os.MkdirAll(filepath.Join(root, libraries), 0o755),
		os.MkdirAll(filepath.Join(root, programs), 0o755)))
	for _, path := range driverFiles(t, packages) {
		name := filepath.Base(path)
		to := filepath.Join(root, programs, name)
		if !isProgram(name) {
			to = filepath.Join(root, libraries, name)
		}
		must(t, os.WriteFile(to, nil, 0o755))
		if strings.HasPrefix(name, "libnvidia-ml.so.") {
			must(t, os.Symlink(name, filepath.Join(root, libraries, "libnvidia-ml.so.1")))
		}
	}
	return root
}

// withLibraries32 adds a library for 32-bit programs, which no container gets, to a root of Red Hat.
func withLibraries32(t *testing.T, root, version string) string {
	t.Helper()
	dir := filepath.Join(root, "usr/lib")
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "libcuda.so."+version), nil, 0o755))
	return root
}

// driverFiles returns the paths of the packages' libraries and programs.
func driverFiles(t *testing.T, packages string) (paths []string) {
	t.Helper()
	must(t, filepath.WalkDir(filepath.Join(packages, "usr"), func(path string, entry fs.DirEntry, err error) error {
		if entry.Name() == "share" {
			return fs.SkipDir
		}
		if err == nil && entry.Type().IsRegular() && (strings.Contains(path, ".so.") || isProgram(entry.Name())) {
			paths = append(paths, path)
		}
		return err
	}))
	return paths
}

func isProgram(name string) bool {
	return slices.Contains([]string{"nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}, name)
}

// TestNVIDIAFiles finds what a container needs among NVIDIA's own files, in every layout: all libraries of the packages
// and the programs.
func TestNVIDIAFiles(t *testing.T) {
	builtIn, err := simulator.BuiltIn("t4-x2")
	must(t, err)
	nvidia.Each(t, func(t *testing.T, b nvidia.Branch) {
		packages, version := b.Root, b.Version
		var want []string
		for _, path := range driverFiles(t, packages) {
			want = append(want, filepath.Base(path))
		}
		profile, err := simulator.ParseProfile([]byte(strings.ReplaceAll(builtIn.YAML(), builtIn.Driver(), version)))
		must(t, err)
		slices.Sort(want)
		for name, root := range map[string]string{
			"Debian":           b.Installed(t),
			"driver container": arranged(t, packages, "usr/lib/x86_64-linux-gnu", "usr/bin"),
			"Red Hat":          arranged(t, packages, "usr/lib64", "usr/bin"),
			"GKE":              arranged(t, packages, "lib64", "bin"),
			"Arch":             arranged(t, packages, "usr/lib", "usr/bin"),
			"Talos":            arranged(t, packages, "usr/local/glibc/usr/lib", "usr/local/bin"),
			"32-bit libraries": withLibraries32(t, arranged(t, packages, "usr/lib64", "usr/bin"), version),
		} {
			t.Run(name, func(t *testing.T) {
				m, _, kit := machineOf(t, profile)
				kit.HookPath = "/hook"
				kit.Driver = driverroot.Root{Host: "/host", Here: root, HostDev: m.DriverRoot()}
				access, err := kit.DriverAccess(t.Context())
				must(t, err)
				var got []string
				for _, mount := range access.Mounts {
					file := filepath.Base(mount.HostPath)
					got = append(got, file)
					if _, err := os.Stat(strings.Replace(mount.HostPath, "/host", root, 1)); err != nil {
						t.Errorf("a mount of what the host has not: %v", err)
					}
					if isProgram(file) && !strings.HasSuffix(filepath.Dir(mount.ContainerPath), "bin") {
						t.Errorf("%s is not in the search path of containers", mount.ContainerPath)
					}
				}
				slices.Sort(got)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("want - got +\n%s", diff)
				}
			})
		}
	})
}
