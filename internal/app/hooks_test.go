// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/internal/plugin"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
)

func TestInstallHooks(t *testing.T) {
	sources, dir := t.TempDir(), t.TempDir()
	o := options{pluginDir: t.TempDir(), hooksDir: filepath.Join(dir, "a/hooks"),
		cdiHook: filepath.Join(sources, "nvidia-cdi-hook"), combinedHook: filepath.Join(sources, "combined")}
	for _, row := range []struct {
		name    string
		sources map[string]string // to write before
		flag    string            // of the program that is missing
	}{
		{"without NVIDIA's program", nil, "--cdi-hook"},
		{"without the combined one", map[string]string{"nvidia-cdi-hook": "one"}, "--combined-cdi-hook"},
		{"both", map[string]string{"combined": "one"}, ""},
		{"again", nil, ""},
		{"a new version", map[string]string{"combined": "two", "nvidia-cdi-hook": "two"}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			for name, content := range row.sources {
				if err := os.WriteFile(filepath.Join(sources, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := installHooks(t.Context(), o)
			if row.flag != "" {
				if !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), row.flag+": ") {
					t.Errorf("got %v, want %s: …", err, row.flag)
				}
				return
			}
			want := hooks{filepath.Join(o.hooksDir, "nvidia-cdi-hook"), filepath.Join(o.hooksDir, "cdi-hooks")}
			if err != nil || got != want {
				t.Fatalf("got %v, %v, want %v", got, err, want)
			}
			for installed, source := range map[string]string{got.each: o.cdiHook, got.combined: o.combinedHook} {
				requireProgram(t, installed, source)
			}
		})
	}
	o.combinedHook = ""
	if got, err := installHooks(t.Context(), o); got.combined != "" || err != nil {
		t.Errorf("switched off: got %v, %v", got, err)
	}
	// What an older version has installed stays until the driver leaves the node.
	old := filepath.Join(o.pluginDir, "cdi-hooks")
	if err := os.WriteFile(old, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := installHooks(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); err != nil {
		t.Errorf("CDI specs may name it: %v", err)
	}
	if err := removeHooks(o); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{filepath.Dir(o.hooksDir), o.pluginDir} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
}

// TestHooksAreNeverInMemory: a program is larger than all that the idle plugin keeps on its heap.
func TestHooksAreNeverInMemory(t *testing.T) {
	const size, limit = 10 << 20, 1 << 20
	source, target := filepath.Join(t.TempDir(), "source"), filepath.Join(t.TempDir(), "target")
	for _, row := range []struct{ name, last string }{
		{"installed", "a"},
		{"there", "a"},
		{"its last byte is new", "b"},
		{"longer", "bc"},
		{"shorter", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			program := append(bytes.Repeat([]byte("x"), size), row.last...)
			if err := os.WriteFile(source, program, 0o600); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := installHook(source, target)
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; err != nil || got > limit {
				t.Errorf("allocated %d bytes, %v, want at most %d", got, err, limit)
			}
			requireProgram(t, target, source)
		})
	}
}

// TestHooksElsewhere: a directory that cannot have the hooks, or must not, is no reason to serve no pod at all.
func TestHooksElsewhere(t *testing.T) {
	for _, row := range []struct {
		name string
		make func(dir string) error // makes the directory
		want string                 // the directory of the hooks
	}{
		{"none is set", nil, "plugin"},
		{"a missing one is made, for all users", func(string) error { return nil }, "hooks"},
		{"one for all users", func(dir string) error { return os.Mkdir(dir, 0o755) }, "hooks"},
		{"one for root", func(dir string) error { return os.Mkdir(dir, 0o750) }, "plugin"},
		{"one that is mounted noexec", func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o755), unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, "mode=755"))
		}, "plugin"},
		{"one on a read-only file system", func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o755), unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "mode=755"))
		}, "plugin"},
		{"a file", func(dir string) error { return os.WriteFile(dir, nil, 0o600) }, "plugin"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if os.Getuid() != 0 {
				t.Skip("mounting needs root")
			}
			base := t.TempDir()
			o := options{pluginDir: filepath.Join(base, "plugin"), cdiHook: "/bin/true", combinedHook: "/bin/true"}
			if err := os.Mkdir(o.pluginDir, 0o750); err != nil {
				t.Fatal(err)
			}
			if row.make != nil {
				o.hooksDir = filepath.Join(base, "hooks")
				t.Cleanup(func() { _ = unix.Unmount(o.hooksDir, unix.MNT_DETACH) })
				if err := row.make(o.hooksDir); err != nil {
					t.Fatal(err)
				}
			}
			got, err := installHooks(t.Context(), o)
			want := filepath.Join(base, row.want)
			if err != nil || got != (hooks{filepath.Join(want, "true"), filepath.Join(want, "cdi-hooks")}) {
				t.Errorf("got %v, %v, want them in %s", got, err, want)
			}
		})
	}
}

// runc runs createContainer hooks in the user namespace of the container. In a pod with hostUsers: false, its root is
// nobody on the host. The kubelet keeps others out of its directories.
func TestHooksInAUserNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	base, err := os.MkdirTemp("/tmp", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil { // as /var/lib
		t.Fatal(err)
	}
	plugins := filepath.Join(base, "kubelet/plugins")
	if err := os.MkdirAll(plugins, 0o750); err != nil {
		t.Fatal(err)
	}
	o := options{pluginDir: filepath.Join(plugins, "gpu.nvidia.com"),
		hooksDir: filepath.Join(base, "driver/gpu.nvidia.com"), cdiHook: "/bin/true", combinedHook: "/bin/true"}
	defer unix.Umask(unix.Umask(0o022))
	instance, err := plugin.Enter(o.pluginDir)
	if err != nil {
		t.Fatal(err)
	}
	records, err := checkpoint.Open(o.pluginDir)
	if err != nil {
		t.Fatal(err)
	}
	defer instance.Leave(context.Background(), records, func() error { return nil })
	installed, err := installHooks(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1 << 20, Size: 1 << 16}}
	run := func(path string) error {
		cmd := exec.Command(path)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all,
			Credential: &syscall.Credential{}}
		return cmd.Run()
	}
	if err := run("/bin/true"); err != nil {
		t.Skip("no user namespaces here: ", err)
	}
	for _, path := range []string{installed.each, installed.combined} {
		if err := run(path); err != nil {
			t.Errorf("a container of a pod with hostUsers: false cannot start: %v", err)
		}
	}
}

// requireProgram requires that a file has the content of another and can be executed.
func requireProgram(t *testing.T, path, source string) {
	t.Helper()
	got, err := os.ReadFile(path)
	want, wantErr := os.ReadFile(source)
	if err != nil || wantErr != nil || !bytes.Equal(got, want) {
		t.Errorf("got %q, %v, want %q, %v", got, err, want, wantErr)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, %v, want 0755", info.Mode(), err)
	}
}
