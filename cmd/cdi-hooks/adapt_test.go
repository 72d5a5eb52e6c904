// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// allHooks are the hooks of a GPU. The first two links are in one directory, which is not that of the libraries.
const allHooks = "create-symlinks --link one::/links/a --link two::/more/b -- " +
	"enable-cuda-compat --host-driver-version=550.1 -- update-ldcache --folder /driver -- " +
	"disable-device-node-modification -- update-application-profile"

// all is what they leave in a container that lets them.
const all = "cache compat user soname a b params profile"

// inUserNamespace is set in a process whose root is nobody on the machine.
const inUserNamespace = "CDI_HOOKS_USER_NAMESPACE"

// TestContainers runs the hooks in containers that refuse what they write.
func TestContainers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	readOnly := func(dirs ...string) func(string) error {
		return func(root string) error {
			var errs []error
			for _, dir := range dirs {
				errs = append(errs, mountReadOnly(filepath.Join(root, dir)))
			}
			return errors.Join(errs...)
		}
	}
	moved := func(link, target string) func(string) error {
		return func(root string) error {
			to := filepath.Join(root, target)
			return errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Rename(filepath.Join(root, link), to),
				os.Symlink(target, filepath.Join(root, link)))
		}
	}
	add := func(path string) func(string) error {
		return func(root string) error { return write(filepath.Join(root, path), "") }
	}
	removed := func(paths ...string) func(string) error {
		return func(root string) error {
			var errs []error
			for _, path := range paths {
				errs = append(errs, os.RemoveAll(filepath.Join(root, path)))
			}
			return errors.Join(errs...)
		}
	}
	for _, row := range []struct {
		name  string
		shape []func(root string) error
		want  string
	}{
		{"ordinary", nil, all},
		{"a read-only volume at /etc/ld.so.conf.d", []func(string) error{readOnly("etc/ld.so.conf.d")}, all},
		{"the same, and no cache in the image",
			[]func(string) error{removed("etc/ld.so.cache"), readOnly("etc/ld.so.conf.d")}, all},
		{"a read-only volume at /etc, with a cache", []func(string) error{readOnly("etc")},
			"cache compat user soname a b params"},
		{"the same, and a volume below it", []func(string) error{readOnly("etc/ld.so.conf.d", "etc")},
			"cache compat user soname a b params"},
		{"a read-only volume at /etc, without a cache", []func(string) error{removed("etc/ld.so.cache"),
			readOnly("etc")}, "soname a b params"},
		{"a cache that is a volume", []func(string) error{readOnly("etc/ld.so.cache")}, all},
		{"a read-only directory of libraries", []func(string) error{readOnly("driver")},
			"cache compat user a b params profile"},
		{"a read-only directory of links", []func(string) error{readOnly("links")},
			"cache compat user soname b params profile"},
		{"a read-only volume at /run", []func(string) error{readOnly("run")}, all},
		{"everything read-only", []func(string) error{readOnly("")}, "cache compat user params"},
		{"distroless: no configuration of the loader", []func(string) error{removed("etc/ld.so.conf",
			"etc/ld.so.conf.d", "etc/ld.so.cache")}, "cache compat soname a b params profile"},
		{"distroless, and /etc read-only", []func(string) error{removed("etc/ld.so.conf", "etc/ld.so.conf.d",
			"etc/ld.so.cache"), readOnly("etc")}, "soname a b params"},
		{"musl", []func(string) error{add("etc/alpine-release")}, all + " musl"},
		{"musl, and /etc read-only", []func(string) error{add("etc/alpine-release"), readOnly("etc")},
			"cache compat user soname a b params"},
		{"no /etc", []func(string) error{removed("etc")}, "cache compat soname a b params profile"},
		{"/etc is an absolute link", []func(string) error{moved("etc", "/private/etc")},
			"cache compat user soname a b params"},
		{"/etc is a relative link", []func(string) error{moved("etc", "private"),
			func(root string) error {
				return errors.Join(os.RemoveAll(filepath.Join(root, "etc")), os.Symlink("private",
					filepath.Join(root, "etc")))
			}}, all},
		{"/run and the directory of links are absolute links",
			[]func(string) error{moved("run", "/var/run"), moved("links", "/var/links")}, all},
		{"/etc is an absolute link to a read-only volume",
			[]func(string) error{moved("etc", "/private/etc"), readOnly("private/etc")},
			"cache compat user soname a b params"},
		{"a file in place of the directory of links", []func(string) error{func(root string) error {
			return errors.Join(os.RemoveAll(filepath.Join(root, "links")), write(filepath.Join(root, "links"), ""))
		}}, "cache compat user soname b params profile"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var got string
			inMountNamespace(t, func() error {
				bundle := t.TempDir()
				root := filepath.Join(bundle, "rootfs")
				if err := layOut(bundle, root); err != nil {
					return err
				}
				for _, change := range row.shape {
					if err := change(root); err != nil {
						return err
					}
				}
				before := mounts(t, root)
				err := runHooks(t, bundle, allHooks)
				got = left(root, err)
				if n := mounts(t, root) - before; n > 3 { // the parameters in a file system of NVIDIA's hook, the cache
					got += fmt.Sprintf(" %d mounts", n)
				}
				return nil
			})
			if got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

// TestInAUserNamespace runs TestContainers as runc does in a pod with hostUsers: false.
func TestInAUserNamespace(t *testing.T) {
	if os.Getuid() != 0 || os.Getenv(inUserNamespace) != "" {
		t.Skip("needs root")
	}
	const root = 1 << 20 // on the machine
	// Each directory above it can be entered by everybody.
	dir, err := os.MkdirTemp("/tmp", "")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, root, root)))
	test, err := os.ReadFile(os.Args[0])
	must(t, err)
	program := filepath.Join(dir, "test")
	must(t, os.WriteFile(program, test, 0o755))
	all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: root, Size: 1 << 16}}
	cmd := exec.Command(program, "-test.run=^TestContainers$")
	cmd.Dir, cmd.Env = "/", append(os.Environ(), "TMPDIR="+dir, inUserNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: all,
		GidMappings: all, Credential: &syscall.Credential{}}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skip("no user namespaces here: ", err)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestReplacedDirectory: a running container of the pod replaces a directory of a volume while a hook covers it. What
// the hook gets is never the volume's, where a link would lead it to files of the host.
func TestReplacedDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	root := tmpfs.Dir(t)
	etc, other := filepath.Join(root, "volume/etc"), filepath.Join(root, "volume/other")
	must(t, errors.Join(write(filepath.Join(etc, "of-the-volume"), ""),
		write(filepath.Join(other, "of-the-volume"), ""), os.Symlink("volume/etc", filepath.Join(root, "etc"))))
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, etc, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
			}
		}
	}()
	inMountNamespace(t, func() error {
		for range 300 { // one of the first few was enough
			memory, remove, err := scratch(root, etcDir)
			if err != nil {
				continue // refused
			}
			if _, err := os.Stat(link(memory) + "/of-the-volume"); err == nil {
				t.Error("the hook would write into the volume")
			}
			remove()
			if t.Failed() {
				break
			}
		}
		return nil
	})
	close(stop)
	<-stopped
}

// TestErrors: the last line says which hook, and why.
func TestErrors(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	inMountNamespace(t, func() error {
		bundle := t.TempDir()
		if err := layOut(bundle, filepath.Join(bundle, "rootfs")); err != nil {
			return err
		}
		err := runHooks(t, bundle, "create-symlinks --link one::/links/a -- "+
			"update-ldcache --ldconfig-path /nowhere/ldconfig")
		const want = "CDI hook update-ldcache: exit status 1: error cloning host ldconfig: " +
			"error opening host ldconfig: open /nowhere/ldconfig: no such file or directory"
		lines := strings.Split(fmt.Sprint(err), "\n")
		if !strings.HasSuffix(lines[len(lines)-1], want) || len(lines) > 2 {
			t.Errorf("got %v\nwant %s", err, want)
		}
		return nil
	})
}

// TestPassing: a full disk is not what a container is.
func TestPassing(t *testing.T) {
	for _, row := range []struct {
		err  error
		want bool
	}{
		{&fs.PathError{Op: "open", Path: "a", Err: syscall.EROFS}, true},
		{fmt.Errorf("x: %w", syscall.EACCES), true},
		{&fs.PathError{Op: "open", Path: "a", Err: errors.New("path escapes from parent")}, true},
		{&fs.PathError{Op: "open", Path: "a", Err: syscall.ENOSPC}, false},
		{errors.New("invalid symlink specification"), false},
	} {
		if got := isRefused(row.err); got != row.want {
			t.Errorf("%v: got %t, want %t", row.err, got, row.want)
		}
	}
}

// runHooks runs the hooks of the command line for the container.
func runHooks(t *testing.T, bundle, args string) error {
	t.Helper()
	logrus.SetLevel(logrus.ErrorLevel)
	defer func(f *os.File) { os.Stdin = f }(os.Stdin)
	state := strings.NewReader(fmt.Sprintf(`{"bundle":%q}`, bundle))
	return run(append([]string{"cdi-hooks"}, strings.Fields(args)...), state)
}

// layOut makes a container with a library of the driver, one of its own, and CUDA libraries newer than the driver.
func layOut(bundle, root string) error {
	if err := errors.Join(os.Mkdir(root, 0o755), unix.Mount("tmpfs", root, "tmpfs", 0, "mode=755"),
		unix.Mount("tmpfs", "/proc/driver", "tmpfs", 0, ""),
		write("/proc/driver/nvidia/params", "ModifyDeviceFiles: 1\n"),
		write(filepath.Join(bundle, "config.json"), `{"root":{"path":"rootfs"}}`)); err != nil {
		return err
	}
	libraries, err := filepath.Glob("/lib/*-linux-gnu/libdl.so.2")
	if err != nil || len(libraries) == 0 {
		return fmt.Errorf("no library to copy: %w", err)
	}
	library, err := os.ReadFile(libraries[0])
	if err != nil {
		return err
	}
	for path, content := range map[string]string{
		"etc/ld.so.conf":                         "include /etc/ld.so.conf.d/*.conf\n",
		"etc/ld.so.conf.d/user.conf":             "/user\n",
		"etc/ld.so.cache":                        "of the image",
		"user/libuser.so.2":                      string(library),
		"driver/libdl.so.2.550":                  string(library),
		"usr/local/cuda/compat/libcuda.so.999.1": string(library),
		"links/of-the-image":                     "",
		"more/of-the-image":                      "",
		"run/of-the-image":                       "",
		"dev/nvidia0":                            "",
		"proc/driver/nvidia/params":              "ModifyDeviceFiles: 1\n",
		"sys/empty":                              "",
	} {
		if err := write(filepath.Join(root, path), content); err != nil {
			return err
		}
	}
	return unix.Mount("/dev/null", filepath.Join(root, "dev/nvidia0"), "", unix.MS_BIND, "")
}

func write(path, content string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
}

func mountReadOnly(path string) error {
	return errors.Join(unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""),
		unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

// mounts returns how many mounts are at and below the directory.
func mounts(t *testing.T, dir string) int {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		t.Error(err)
	}
	return strings.Count(string(text), " "+dir)
}

// left says what hooks have left in a container.
func left(root string, err error) string {
	if err != nil {
		return err.Error()
	}
	has := func(path, text string) bool {
		f, err := pathrs.OpenInRoot(root, path)
		if err != nil {
			return false
		}
		defer f.Close()
		content, err := os.ReadFile(link(f))
		return err == nil && bytes.Contains(content, []byte(text))
	}
	is := func(path, target string) bool { // a link
		dir, err := pathrs.OpenInRoot(root, filepath.Dir(path))
		if err != nil {
			return false
		}
		defer dir.Close()
		got, err := os.Readlink(filepath.Join(link(dir), filepath.Base(path)))
		return err == nil && got == target
	}
	var found []string
	for _, what := range []struct {
		name string
		is   bool
	}{
		{"cache", has(cacheFile, "/driver/")},
		{"compat", has(cacheFile, "/usr/local/cuda/compat/")},
		{"user", has(cacheFile, "/user/")},
		{"soname", is("/driver/libdl.so.2", "libdl.so.2.550")},
		{"a", is("/links/a", "one")},
		{"b", is("/more/b", "two")},
		{"params", has(paramsFile, "ModifyDeviceFiles: 0") && isReadOnly(root, paramsFile)},
		{"profile", has("/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf", "EGLVisibleDGPUDevices")},
		{"musl", has("/etc/ld-musl-x86_64.path", "/driver") || has("/etc/ld-musl-aarch64.path", "/driver")},
	} {
		if what.is {
			found = append(found, what.name)
		}
	}
	return strings.Join(found, " ")
}

// isReadOnly reports whether the file of the container is on a mount that root cannot write to.
func isReadOnly(root, path string) bool {
	f, err := pathrs.OpenInRoot(root, path)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = os.OpenFile(link(f), os.O_WRONLY, 0)
	return errors.Is(err, syscall.EROFS)
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
