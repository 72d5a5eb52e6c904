// SPDX-License-Identifier: Apache-2.0

// Package libnvml tests libnvidia-ml.so.1 of simulated GPUs with programs of others: NVIDIA's nvidia-smi, device plugin
// and GPU feature discovery, and go-nvml.
package libnvml

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/test/nvidia"
)

// workDir has what all tests use. TestMain removes it.
var workDir string

func TestMain(m *testing.M) {
	if name := os.Getenv(errorsVariable); name != "" {
		printErrors(name)
		return
	}
	var err error
	if workDir, err = os.MkdirTemp("", "libnvml-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(workDir)
	os.Exit(code)
}

var build = sync.OnceValues(func() (string, error) {
	file := filepath.Join(workDir, "libnvidia-ml.so.1")
	output, err := exec.Command("go", "run", "../../simulator/libnvml/build", file).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build %s: %w: %s", file, err, output)
	}
	return file, nil
})

// library returns the path of the library.
func library(t *testing.T) string {
	t.Helper()
	nvidia.Branches(t) // make test-nvidia takes these tests
	file, err := build()
	must(t, err)
	return file
}

// simulate creates a node of the profile. The programs that this test starts, and the library in it, use that one.
func simulate(t *testing.T, p simulator.Profile) *simulator.Node {
	t.Helper()
	n, err := simulator.Open(t.TempDir(), p)
	must(t, err)
	must(t, n.LayOutSysfs())
	t.Setenv("SIMULATE_DIR", n.Dir())
	t.Setenv("SIMULATE_PROFILE", "")
	return n
}

// builtIn returns the built-in profile, with the driver version of a suite unless that is "".
func builtIn(t *testing.T, name, driver string) simulator.Profile {
	t.Helper()
	p, err := simulator.BuiltIn(name)
	must(t, err)
	if driver != "" {
		text := strings.ReplaceAll(p.YAML(), p.Driver(), driver)
		p, err = simulator.ParseProfile([]byte(text))
		must(t, err)
	}
	return p
}

// load initializes the library in this process, which so has two Go runtimes.
func load(t *testing.T) nvml.Interface {
	t.Helper()
	return initialized(t, nvml.New(nvml.WithLibraryPath(library(t))))
}

// initialized initializes the library until the end of the test.
func initialized(t *testing.T, lib nvml.Interface) nvml.Interface {
	t.Helper()
	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	t.Cleanup(func() { lib.Shutdown() })
	return lib
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
