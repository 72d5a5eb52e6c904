// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/test/nvidia"
)

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

// rootVariable makes the test program look at the GPUs with the library below a driver root, then replace that root by
// the one whose name ends in .new, and look again. It prints the errors. It is a process of its own, because a process
// can load one library only.
const rootVariable = "NVML_TEST_DRIVER_ROOT"

func lookTwice(root string) {
	n := nvml.New(nvml.Config{Driver: driverroot.Root{Host: "/", Here: root}})
	_, err := n.Discover(context.Background())
	fmt.Println(err)
	if err := errors.Join(os.Rename(root, root+".old"), os.Rename(root+".new", root)); err != nil {
		fmt.Println(err)
	}
	_, err = n.Discover(context.Background())
	fmt.Println(err)
}

// TestNVIDIALibrary loads NVIDIA's library from a root as Debian installs it. It says that there is no driver. When the
// root is replaced by one of another driver, the process must end.
func TestNVIDIALibrary(t *testing.T) {
	oldest := nvidia.Branches(t)[0]
	nvidia.Each(t, func(t *testing.T, b nvidia.Branch) {
		root := installed(t, b.Root)
		must(t, os.Rename(installed(t, oldest.Root), root+".new"))
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), rootVariable+"="+root)
		output, err := cmd.CombinedOutput()
		must(t, err)
		want := "initialise NVML: Driver Not Loaded\n" + nvml.ErrDriverReplaced.Error() + "\n"
		if diff := cmp.Diff(want, string(output)); diff != "" {
			t.Errorf("want - got +\n%s", diff)
		}
	})
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
			"Debian":           installed(t, packages),
			"driver container": arranged(t, packages, "usr/lib/x86_64-linux-gnu", "usr/bin"),
			"Red Hat":          arranged(t, packages, "usr/lib64", "usr/bin"),
			"GKE":              arranged(t, packages, "lib64", "bin"),
			"Arch":             arranged(t, packages, "usr/lib", "usr/bin"),
			"Talos":            arranged(t, packages, "usr/local/glibc/usr/lib", "usr/local/bin"),
			"32-bit libraries": withLibraries32(t, arranged(t, packages, "usr/lib64", "usr/bin"), version),
		} {
			t.Run(name, func(t *testing.T) {
				m, _ := machineOf(t, profile)
				n, err := nvml.Open(nvml.Config{Library: m.NVML(), HookPath: "/hook", Driver: driverroot.Root{
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
