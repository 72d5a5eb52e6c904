// SPDX-License-Identifier: Apache-2.0

// Package driverroot finds the libraries and programs of NVIDIA's driver below a root directory, in every layout in
// which distributions install them. Links are resolved inside the root, because it may be mounted anywhere.
package driverroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// Dir is the root of NVIDIA's driver, as this program sees it.
type Dir string

// ErrNoDriver means that NVIDIA's driver is not in the root.
var ErrNoDriver = errors.New("no NVIDIA driver")

// libraryDirs are the directories of libraries, relative to the root, in the order of search.
var libraryDirs = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
	"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "usr/lib", "lib",
	"usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/aarch64-linux-gnu/nvidia/current", // Debian
	"usr/local/glibc/usr/lib", // Talos before 1.13
}

// programDirs are the directories of programs, relative to the root, in the order of search.
var programDirs = []string{
	"usr/bin", "bin", "usr/sbin", "sbin",
	"usr/local/bin",          // Talos
	"usr/lib/nvidia/current", // Debian
}

// LibraryDirs returns the paths of the directories that may have libraries.
func (d Dir) LibraryDirs() []string { return d.below(libraryDirs) }

// ProgramDirs returns the paths of the directories that may have programs.
func (d Dir) ProgramDirs() []string { return d.below(programDirs) }

// Watched returns the directories whose changes may change what is found, relative to the root.
func Watched() []string { return slices.Concat(libraryDirs, programDirs, []string{"etc/alternatives"}) }

func (d Dir) below(dirs []string) []string {
	var paths []string
	for _, dir := range dirs {
		paths = append(paths, filepath.Join(string(d), dir))
	}
	return paths
}

// Library returns the path of the library, without links. Error: ErrNoDriver.
func (d Dir) Library(name string) (string, error) {
	found, err := d.find(libraryDirs, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is in no library directory below %s: %w", name, d, ErrNoDriver)
	}
	return found, err
}

// Program returns the path of the program, without links. Error: exec.ErrNotFound.
func (d Dir) Program(name string) (string, error) {
	found, err := d.find(programDirs, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is in no directory for programs below %s: %w", name, d, exec.ErrNotFound)
	}
	return found, err
}

// find returns the first of the files, without links. Error: fs.ErrNotExist.
func (d Dir) find(dirs []string, name string) (string, error) {
	for _, dir := range dirs {
		found, err := d.resolve(filepath.Join(dir, name))
		if !errors.Is(err, fs.ErrNotExist) {
			return found, err
		}
	}
	return "", fs.ErrNotExist
}

// resolve returns the file's path in the root, without links. Error: fs.ErrNotExist.
func (d Dir) resolve(file string) (string, error) {
	resolved, err := securejoin.SecureJoin(string(d), file)
	if err == nil {
		_, err = os.Stat(resolved)
	}
	return resolved, err
}

// Libraries returns the libraries that match a pattern of path.Match, by name, without links. Of several directories
// with the same name, the first counts.
func (d Dir) Libraries(patterns ...string) (map[string]string, error) {
	found := map[string]string{}
	for _, dir := range libraryDirs {
		where, err := d.resolve(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		entries, err := os.ReadDir(where)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			name := e.Name()
			if _, known := found[name]; known || !slices.ContainsFunc(patterns, func(p string) bool {
				ok, _ := path.Match(p, name)
				return ok
			}) {
				continue
			}
			if file, err := d.resolve(filepath.Join(dir, name)); err == nil { // a dangling link is no library
				found[name] = file
			}
		}
	}
	return found, nil
}
