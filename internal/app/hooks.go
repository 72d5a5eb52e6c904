// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/check/host"
)

// combinedHookFile is the name of the program that runs CDI hooks in one process.
const combinedHookFile = "cdi-hooks"

// hooks are the paths of the CDI hook programs on the host.
type hooks struct {
	each     string // NVIDIA's program
	combined string // may be empty
}

// installHooks copies the hook programs to a directory of the host, and returns their paths. If --hooks-dir cannot have
// them, that is the plugin's directory: there they run for all containers but those of pods with hostUsers: false,
// whose root may not enter the kubelet's directories. Files that an older version has installed there stay, because CDI
// specs may name them.
func installHooks(ctx context.Context, o options) (hooks, error) {
	dir := o.pluginDir
	if o.hooksDir != "" {
		if err := openDir(o.hooksDir); err != nil {
			klog.FromContext(ctx).Error(err, "Pods with hostUsers: false cannot use GPUs on this node: give the "+
				"driver a directory that it can write to and that all users can run programs from (hooksDir of the "+
				"chart)", "dir", o.hooksDir)
		} else {
			dir = o.hooksDir
		}
	}
	h := hooks{each: filepath.Join(dir, filepath.Base(o.cdiHook))}
	if err := installHook(o.cdiHook, h.each); err != nil {
		return hooks{}, fmt.Errorf("--cdi-hook: %w", err)
	}
	if o.combinedHook == "" {
		return h, nil
	}
	h.combined = filepath.Join(dir, combinedHookFile)
	if err := installHook(o.combinedHook, h.combined); err != nil {
		return hooks{}, fmt.Errorf("--combined-cdi-hook: %w", err)
	}
	return h, nil
}

// openDir makes a directory that all users can run programs from. It leaves an existing one as it is. The directories
// above it are not visible here; the command check looks at them.
func openDir(dir string) error {
	err := os.MkdirAll(filepath.Dir(dir), 0o755)
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		err = unix.Access(dir, unix.W_OK)
	case err == nil:
		err = os.Chmod(dir, 0o755) // whatever the umask
	}
	if err != nil {
		return err
	}
	return host.RunsForAll(dir)
}

// installHook copies the program, unless it is there. It never has a whole program in memory: one has 10 MiB, more than
// all that the idle plugin keeps on its heap.
func installHook(source, target string) error {
	program, err := os.Open(source)
	if err != nil {
		return fmt.Errorf("read the CDI hook program: %w", err)
	}
	defer program.Close()
	installed, err := os.Open(target)
	switch {
	case err == nil:
		same := sameContent(program, installed)
		if installed.Close(); same {
			return nil
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	// Replace it atomically: the host may be running the old one.
	if err := replace(target, program); err != nil {
		return fmt.Errorf("install the CDI hook program: %w", err)
	}
	return nil
}

// sameContent reports whether both are readable and the same from here to their ends.
func sameContent(a, b io.Reader) bool {
	var parts [2][64 << 10]byte
	for {
		n, errOfA := io.ReadFull(a, parts[0][:])
		m, errOfB := io.ReadFull(b, parts[1][:])
		if !bytes.Equal(parts[0][:n], parts[1][:m]) {
			return false
		}
		if errOfA != nil {
			return ended(errOfA) && ended(errOfB)
		}
	}
}

// ended reports whether io.ReadFull came to the end.
func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// replace writes the whole file to the path, as a program.
func replace(path string, with *os.File) error {
	if _, err := with.Seek(0, io.SeekStart); err != nil {
		return err
	}
	file, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o755), renameio.IgnoreUmask())
	if err != nil {
		return err
	}
	defer func() { _ = file.Cleanup() }()
	if _, err := io.Copy(file, with); err != nil {
		return err
	}
	return file.CloseAtomicallyReplace()
}

// removeHooks removes the hook programs, also those that an older version has installed in the plugin's directory, and
// --hooks-dir if nothing else is in it.
func removeHooks(o options) error {
	var paths []string
	for _, dir := range slices.Compact([]string{o.pluginDir, cmp.Or(o.hooksDir, o.pluginDir)}) {
		paths = append(paths, filepath.Join(dir, filepath.Base(o.cdiHook)), filepath.Join(dir, combinedHookFile))
	}
	if o.hooksDir != "" {
		paths = append(paths, o.hooksDir)
	}
	var errs []error
	for _, path := range paths {
		err := os.Remove(path)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) &&
			!errors.Is(err, unix.EROFS) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
