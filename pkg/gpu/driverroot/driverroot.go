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
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// Root is the root directory of NVIDIA's driver.
type Root struct {
	Host string // on the host, as container runtimes see it
	Here string // as this program sees it
	// HostDev is a directory of this program with the host's /dev, for driver roots without device nodes. Empty: none.
	HostDev string
}

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

// ProgramDirs returns the paths of the directories that may have programs.
func (r Root) ProgramDirs() []string {
	var paths []string
	for _, dir := range programDirs {
		paths = append(paths, filepath.Join(r.Here, dir))
	}
	return paths
}

// Watched returns the directories whose changes may change what is found, relative to the root.
func Watched() []string { return slices.Concat(libraryDirs, programDirs, []string{"etc/alternatives"}) }

// nvml is the name of the NVML library, without its version.
const nvml = "libnvidia-ml.so."

// Library returns the path of the driver's NVML library, without links. Error: ErrNoDriver.
func (r Root) Library() (string, error) {
	found, err := r.find(libraryDirs, nvml+"1")
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is in no library directory below %s: %w: install the driver below %s of the host, "+
			"or name the directory that has it (--driver-root)", nvml+"1", r.Here, ErrNoDriver, r.Host)
	}
	return found, err
}

// Versions returns the driver versions with an NVML library in the root, sorted. There are several after an incomplete
// update. It is for people; the link libnvidia-ml.so.1 selects the version in use.
func (r Root) Versions() []string {
	found, err := r.Libraries(nvml + "*.*")
	if err != nil {
		return nil
	}
	var versions []string
	for name := range found {
		versions = append(versions, strings.TrimPrefix(name, nvml))
	}
	slices.Sort(versions)
	return versions
}

// Dev returns the directory whose /dev has the driver's device nodes, as seen here and on the host.
func (r Root) Dev() (here, host string) {
	const control = "dev/nvidiactl"
	if _, err := os.Stat(filepath.Join(r.Here, control)); err != nil && r.HostDev != "" {
		if _, err := os.Stat(filepath.Join(r.HostDev, control)); err == nil {
			return r.HostDev, "/"
		}
	}
	return r.Here, r.Host
}

// DeviceNodes begins the paths of the device nodes of NVIDIA's driver.
const DeviceNodes = "/dev/nvidia"

// DeviceNode returns the path of the device node of the GPU with the minor number.
func DeviceNode(minor int) string { return fmt.Sprint(DeviceNodes, minor) }

// Program returns the path of the program, without links. Error: exec.ErrNotFound.
func (r Root) Program(name string) (string, error) {
	found, err := r.find(programDirs, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is in no directory for programs below %s: %w", name, r.Here, exec.ErrNotFound)
	}
	return found, err
}

// find returns the first of the files, without links. Error: fs.ErrNotExist.
func (r Root) find(dirs []string, name string) (string, error) {
	for _, dir := range dirs {
		found, err := r.resolve(filepath.Join(dir, name))
		if !errors.Is(err, fs.ErrNotExist) {
			return found, err
		}
	}
	return "", fs.ErrNotExist
}

// resolve returns the file's path in the root, without links. Error: fs.ErrNotExist.
func (r Root) resolve(file string) (string, error) {
	resolved, err := securejoin.SecureJoin(r.Here, file)
	if err == nil {
		_, err = os.Stat(resolved)
	}
	return resolved, err
}

// Libraries returns the libraries that match a pattern of path.Match, by name, without links. Of several directories
// with the same name, the first counts.
func (r Root) Libraries(patterns ...string) (map[string]string, error) {
	found := map[string]string{}
	for _, dir := range libraryDirs {
		where, err := r.resolve(dir)
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
			if file, err := r.resolve(filepath.Join(dir, name)); err == nil { // a dangling link is no library
				found[name] = file
			}
		}
	}
	return found, nil
}
