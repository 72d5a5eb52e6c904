// SPDX-License-Identifier: Apache-2.0

package toolkit_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/toolkit"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/test/nvidia"
)

// TestCombinedHooks compares what the combined hooks leave in a container with what NVIDIA's program leaves.
func TestCombinedHooks(t *testing.T) {
	_, _, kit := machine(t, "t4-x2")
	compareHooks(t, kit, buildHooks(t))
}

// TestNVIDIACombinedHooks does it with NVIDIA's own libraries, which go into the loader's cache.
func TestNVIDIACombinedHooks(t *testing.T) {
	builtIn, err := simulator.BuiltIn("t4-x2")
	must(t, err)
	nvidia.Branches(t) // or skip
	programs := buildHooks(t)
	nvidia.Each(t, func(t *testing.T, b nvidia.Branch) {
		profile, err := simulator.ParseProfile([]byte(strings.ReplaceAll(builtIn.YAML(), builtIn.Driver(), b.Version)))
		must(t, err)
		m, _, kit := machineOf(t, profile)
		kit.Driver = driverroot.Root{Here: b.Installed(t), HostDev: m.DriverRoot()}
		compareHooks(t, kit, programs)
	})
}

// buildHooks returns a directory with NVIDIA's program and cdi-hooks. It stays, so that Go does not link them again.
func buildHooks(t *testing.T) string {
	t.Helper()
	programs, err := filepath.Abs("../../../_output/test")
	must(t, err)
	must(t, os.MkdirAll(programs, 0o755))
	out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", programs+"/",
		"../../../cmd/cdi-hooks", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return programs
}

func compareHooks(t *testing.T, kit *toolkit.Toolkit, programs string) {
	t.Helper()
	kit.HookPath = filepath.Join(programs, "nvidia-cdi-hook")
	kit.Driver.Host = kit.Driver.Here // the hooks run here
	separate, processes := containerAfterHooks(t, kit)
	if processes < 5 {
		t.Errorf("got %d processes of NVIDIA's program, want 5 or more", processes)
	}
	kit.CombinedHookPath = filepath.Join(programs, "cdi-hooks")
	combined, processes := containerAfterHooks(t, kit)
	if processes != 1 {
		t.Errorf("got %d processes, want 1", processes)
	}
	if diff := cmp.Diff(separate, combined); diff != "" {
		t.Errorf("NVIDIA's program - cdi-hooks +\n%s", diff)
	}
	// Every hook has left something, or the comparison would say nothing.
	for suffix, want := range map[string]string{
		"etc/ld.so.cache":                        "-rw",
		"/libcuda.so":                            "→ libcuda.so.1",
		"etc/ld.so.conf.d/00-compat-RANDOM.conf": "/usr/local/cuda/compat",
		"proc/driver/nvidia/params":              "ModifyDeviceFiles: 0",
		"etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf": "EGLVisibleDGPUDevices",
	} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(combined)), func(path string) bool {
			return strings.HasSuffix(path, suffix) && strings.Contains(combined[path], want)
		}) {
			t.Errorf("no file …%s with %q", suffix, want)
		}
	}
}

// containerAfterHooks makes the root directory of a container with a GPU, runs its hooks as a runtime does, and returns
// its files and how many processes ran.
func containerAfterHooks(t *testing.T, kit *toolkit.Toolkit) (map[string]string, int) {
	t.Helper()
	fresh := &toolkit.Toolkit{NVML: kit.NVML, Driver: kit.Driver, Proc: kit.Proc, HookPath: kit.HookPath,
		CombinedHookPath: kit.CombinedHookPath} // which remembers no answers
	access, err := fresh.DriverAccess(t.Context())
	must(t, err)
	bundle := t.TempDir()
	var files map[string]string
	inMountNamespace(t, func() error {
		root := filepath.Join(bundle, "rootfs")
		if err := layOut(root, access); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"root":{"path":"rootfs"}}`),
			0o600); err != nil {
			return err
		}
		for _, h := range access.Hooks {
			cmd := exec.Command(h.Path, h.Args[1:]...)
			cmd.Args[0], cmd.Env = h.Args[0], h.Env
			cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"bundle":%q}`, bundle))
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", h.Args, err, out)
			}
		}
		files, err = list(root)
		return err
	})
	return files, len(access.Hooks)
}

// inMountNamespace runs f with mounts of its own. A program that f starts has them too.
func inMountNamespace(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever, so that the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	must(t, <-done)
}

// layOut makes what the hooks look at: on the host the parameters of the kernel module, in the container the driver's
// files, one GPU, and CUDA libraries newer than the driver.
func layOut(root string, access gpu.Access) error {
	const params = "proc/driver/nvidia/params"
	// A container's root is a mount point. It disappears with the namespace.
	if err := errors.Join(os.Mkdir(root, 0o755), unix.Mount("tmpfs", root, "tmpfs", 0, ""),
		unix.Mount("tmpfs", "/proc/driver", "tmpfs", 0, "")); err != nil {
		return err
	}
	for path, content := range map[string]string{
		"/" + params:                              "ModifyDeviceFiles: 1\n",
		filepath.Join(root, params):               "ModifyDeviceFiles: 1\n",
		filepath.Join(root, "etc/debian_version"): "12\n",
		filepath.Join(root, "dev/null"):           "",
		filepath.Join(root, "sys/empty"):          "",
	} {
		if err := write(path, content); err != nil {
			return err
		}
	}
	if err := unix.Mknod(filepath.Join(root, "dev/nvidia0"), unix.S_IFCHR|0o666, int(unix.Mkdev(195, 0))); err != nil {
		return err
	}
	for _, m := range access.Mounts {
		targets := []string{m.ContainerPath}
		if strings.HasPrefix(filepath.Base(m.HostPath), "libcuda.so.") {
			targets = append(targets, "/usr/local/cuda/compat/libcuda.so.999.1")
		}
		for _, target := range targets {
			target = filepath.Join(root, target)
			if err := write(target, ""); err != nil {
				return err
			}
			if err := unix.Mount(m.HostPath, target, "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("mount %s at %s: %w", m.HostPath, target, err)
			}
		}
	}
	return nil
}

func write(path, content string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
}

// random are the parts of names that the hooks choose.
var random = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]{6,}`)

// list returns the mode and the content of all files, by path.
func list(root string) (map[string]string, error) {
	files := map[string]string{}
	return files, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch mode := info.Mode(); {
		case mode&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += " → " + target
		case mode.IsRegular() && info.Size() < 1<<20: // libraries are mounted
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if bytes.ContainsRune(content, 0) {
				content = fmt.Appendf(nil, "SHA-256 %x", sha256.Sum256(content))
			}
			text += " " + string(content)
		}
		files[random.ReplaceAllString(name, "RANDOM")] = text
		return nil
	})
}
