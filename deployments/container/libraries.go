// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// glibc is what programs of the NVIDIA driver need beside themselves. They come into the container from the host, so no
// program of the image names these libraries.
var glibc = []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libresolv.so.2"}

// runtimeOf is what a set of dynamically linked programs needs to start.
type runtimeOf struct {
	loader    string            // absolute path as the programs name it
	libraries map[string]string // soname → file on this machine
}

// findRuntime follows the programs' ELF headers and the sonames, and what the found libraries need in turn.
// A statically linked program adds nothing.
func findRuntime(programs, sonames, dirs []string) (runtimeOf, error) {
	found := runtimeOf{libraries: map[string]string{}}
	queue := slices.Clone(sonames)
	for _, program := range programs {
		loader, needed, err := readELF(program)
		if err != nil {
			return runtimeOf{}, err
		}
		if loader != "" {
			found.loader = loader
		}
		queue = append(queue, needed...)
	}
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		if _, ok := found.libraries[name]; ok || name == filepath.Base(found.loader) {
			continue
		}
		file, err := findLibrary(name, dirs)
		if err != nil {
			return runtimeOf{}, err
		}
		found.libraries[name] = file
		_, needed, err := readELF(file)
		if err != nil {
			return runtimeOf{}, err
		}
		queue = append(queue, needed...)
	}
	return found, nil
}

// readELF returns the program's dynamic loader (empty when it has none) and the libraries it names.
func readELF(path string) (loader string, needed []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", nil, fmt.Errorf("read ELF file %s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		text := make([]byte, p.Filesz)
		if _, err := p.ReadAt(text, 0); err != nil {
			return "", nil, fmt.Errorf("read the loader's name in %s: %w", path, err)
		}
		loader = string(text[:max(len(text)-1, 0)]) // without the NUL
	}
	needed, err = f.ImportedLibraries()
	if err != nil {
		return "", nil, fmt.Errorf("read the libraries of %s: %w", path, err)
	}
	return loader, needed, nil
}

func findLibrary(name string, dirs []string) (string, error) {
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		_, err := os.Stat(path)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("find library %s: %w", name, err)
		}
	}
	return "", fmt.Errorf("find library %s: not in %v", name, dirs)
}
