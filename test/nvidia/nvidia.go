// SPDX-License-Identifier: Apache-2.0

// Package nvidia gives tests NVIDIA's own programs, as hack/nvidia-packages.sh unpacks them from Debian's packages.
package nvidia

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Branch is one branch of NVIDIA's driver, without a kernel module.
type Branch struct {
	Suite     string // of Debian, which has it
	Root      string // the unpacked packages
	Version   string // of the driver, such as 550.163.01
	MultiUser bool   // its MPS control program knows -multiuser-server
}

// Libraries is the directory of the libraries.
func (b Branch) Libraries() string {
	return filepath.Join(b.Root, "usr/lib/x86_64-linux-gnu/nvidia/current")
}

// MPSControl is the path of nvidia-cuda-mps-control.
func (b Branch) MPSControl() string { return filepath.Join(b.Root, "usr/bin/nvidia-cuda-mps-control") }

// SMI is the path of nvidia-smi.
func (b Branch) SMI() string { return filepath.Join(b.Root, "usr/lib/nvidia/current/nvidia-smi") }

// debian are the links that Debian's packages make when they are installed: by way of the absolute /etc/alternatives.
var debian = map[string]string{
	"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "/etc/alternatives/nvidia--libnvidia-ml.so.1",
	"etc/alternatives/nvidia--libnvidia-ml.so.1": "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1",
	"usr/bin/nvidia-smi":                         "/etc/alternatives/nvidia--nvidia-smi",
	"etc/alternatives/nvidia--nvidia-smi":        "/usr/lib/nvidia/current/nvidia-smi",
}

// Installed returns a root with the packages as Debian installs them.
func (b Branch) Installed(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	err := os.CopyFS(root, os.DirFS(b.Root))
	for name, target := range debian {
		path := filepath.Join(root, name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path))
	}
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// Branches returns R535, R550 and R555, oldest first. It skips the test unless NVIDIA_PACKAGES names the directory of
// the packages.
func Branches(t *testing.T) []Branch {
	t.Helper()
	packages := os.Getenv("NVIDIA_PACKAGES")
	if packages == "" {
		t.Skip("without NVIDIA's packages: run make test-nvidia")
	}
	all, err := In(packages)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Each runs a test with each of Branches.
func Each(t *testing.T, test func(t *testing.T, b Branch)) {
	for _, b := range Branches(t) {
		t.Run(b.Suite, func(t *testing.T) { test(t, b) })
	}
}

// In returns the branches in a directory as hack/nvidia-packages.sh prints it.
func In(packages string) ([]Branch, error) {
	all := []Branch{{Suite: "bookworm"}, {Suite: "trixie"}, {Suite: "experimental", MultiUser: true}}
	for i := range all {
		b := &all[i]
		b.Root = filepath.Join(packages, b.Suite, "root")
		const prefix = "libcuda.so."
		found, err := filepath.Glob(filepath.Join(b.Libraries(), prefix+"*.*"))
		if err != nil {
			return nil, err
		}
		if len(found) != 1 {
			return nil, fmt.Errorf("%s has libraries %v, want one of CUDA", b.Libraries(), found)
		}
		b.Version = strings.TrimPrefix(filepath.Base(found[0]), prefix)
	}
	return all, nil
}
