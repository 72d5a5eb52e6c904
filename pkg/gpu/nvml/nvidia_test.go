// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

// eachSuite runs a test with the files of NVIDIA's packages in each of Debian's suites.
func eachSuite(t *testing.T, test func(t *testing.T, packages string)) {
	packages := os.Getenv("NVIDIA_PACKAGES")
	if packages == "" {
		t.Skip("without NVIDIA's packages: run make test-nvidia")
	}
	for _, suite := range []string{"bookworm", "trixie", "experimental"} {
		t.Run(suite, func(t *testing.T) { test(t, filepath.Join(packages, suite, "root")) })
	}
}

// debian are the links that Debian's packages make when they are installed: by way of the absolute /etc/alternatives.
var debian = map[string]string{
	"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "/etc/alternatives/nvidia--libnvidia-ml.so.1",
	"etc/alternatives/nvidia--libnvidia-ml.so.1": "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1",
	"usr/bin/nvidia-smi":                         "/etc/alternatives/nvidia--nvidia-smi",
	"etc/alternatives/nvidia--nvidia-smi":        "/usr/lib/nvidia/current/nvidia-smi",
}

// installed returns a root with the packages as Debian installs them.
func installed(t *testing.T, packages string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	must(t, os.CopyFS(root, os.DirFS(packages)))
	for name, target := range debian {
		path := filepath.Join(root, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)))
	}
	return root
}

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
	}
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

// TestNVIDIALibrary loads NVIDIA's library from a root as Debian installs it. It says that there is no driver.
func TestNVIDIALibrary(t *testing.T) {
	eachSuite(t, func(t *testing.T, packages string) {
		n := nvml.New(nvml.Config{Driver: nvml.DriverRoot{Host: "/", Here: installed(t, packages)}})
		if _, err := n.Discover(t.Context()); err == nil || !strings.Contains(err.Error(), "Driver Not Loaded") {
			t.Errorf("got %v, want what NVIDIA's library says without a driver", err)
		}
	})
}

// TestNVIDIAFiles finds what a container needs among NVIDIA's own files, in every layout: all libraries of the packages
// and the programs.
func TestNVIDIAFiles(t *testing.T) {
	builtIn, err := simulator.BuiltIn("t4-x2")
	must(t, err)
	eachSuite(t, func(t *testing.T, packages string) {
		var want []string
		var version string
		for _, path := range driverFiles(t, packages) {
			want = append(want, filepath.Base(path))
			if v, ok := strings.CutPrefix(filepath.Base(path), "libcuda.so."); ok {
				version = v
			}
		}
		profile, err := simulator.ParseProfile([]byte(strings.ReplaceAll(builtIn.YAML(), builtIn.Driver(), version)))
		must(t, err)
		slices.Sort(want)
		for name, root := range map[string]string{
			"Debian":           installed(t, packages),
			"driver container": arranged(t, packages, "usr/lib/x86_64-linux-gnu", "usr/bin"),
			"Red Hat":          arranged(t, packages, "usr/lib64", "usr/bin"),
			"GKE":              arranged(t, packages, "lib64", "bin"),
			"Talos":            arranged(t, packages, "usr/local/glibc/usr/lib", "usr/local/bin"),
		} {
			t.Run(name, func(t *testing.T) {
				m, _ := machineOf(t, profile)
				n, err := nvml.Open(nvml.Config{Library: m.NVML(), HookPath: "/hook", Driver: nvml.DriverRoot{
					Host: "/host", Here: root, HostDev: m.DriverRoot()}})
				must(t, err)
				t.Cleanup(func() { must(t, n.Close()) })
				access, err := n.DriverAccess(t.Context())
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
