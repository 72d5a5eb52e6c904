// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// File descriptors that Start passes to PID 1.
const (
	waitFD     = 3
	listenerFD = 4
)

// Init is PID 1 of a machine. It only returns if the machine cannot run.
func Init(dir string) error {
	if !released() {
		return nil // `up` ended before Release
	}
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	spec, err := LoadSpec(dir)
	if err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(spec.Name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := mount(spec); err != nil {
		return err
	}
	if err := prepare(spec); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(Home, restFolder)); err != nil { // a boot starts all programs
		return fmt.Errorf("forget which programs rest: %w", err)
	}
	if spec.Forward != "" {
		if err := forward(listenerFD, spec.Forward); err != nil {
			return err
		}
	}
	return newSupervisor(spec).run()
}

func released() bool {
	file := os.NewFile(waitFD, "release")
	defer file.Close()
	n, _ := file.Read(make([]byte, 1))
	return n == 1
}

// prepare creates the folders and files, and sets the sysctls of the machine's own namespaces.
func prepare(spec Spec) error {
	for _, dir := range spec.Folders {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(spec.Files)) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write file: %w", err)
		}
		if err := os.WriteFile(path, []byte(spec.Files[path]), 0o644); err != nil {
			return fmt.Errorf("write file: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Set)) {
		if !strings.HasPrefix(name, "net.") {
			return fmt.Errorf("set sysctl %s: it belongs to the whole host", name)
		}
		if err := os.WriteFile(sysctlPath(name), []byte(spec.Set[name]), 0o644); err != nil {
			return fmt.Errorf("set sysctl %s: %w", name, err)
		}
	}
	return nil
}

func sysctlPath(name string) string {
	return "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
}
