// SPDX-License-Identifier: Apache-2.0

// Package simtest opens simulated machines for tests.
package simtest

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// Patience is the timeout of GPUs that answer, however slow the machine is.
const Patience = time.Hour

// Open returns the GPUs of a new machine, as the driver opens them. profile is the name of a built-in profile, or the
// path of a file, with a slash. The test fails if it cannot.
func Open(t testing.TB, profile string) *nvml.Machine {
	t.Helper()
	p, err := simulator.FindProfile(profile, "")
	if err != nil {
		t.Fatal(err)
	}
	machine, err := simulator.Open(tmpfs.Dir(t), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := machine.LayOutSysfs(); err != nil {
		t.Fatal(err)
	}
	node, err := nvml.Open(nvml.MachineConfig{Library: machine.NVML(),
		Sysfs: filepath.Join(machine.DriverRoot(), "sys"), Proc: machine.Proc(), Timeout: Patience})
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// Discover returns the GPUs that the driver finds on such a machine.
func Discover(t testing.TB, profile string) []gpu.Device {
	t.Helper()
	look, err := Open(t, profile).Discover(t.Context())
	if err != nil || len(look.Broken) > 0 {
		t.Fatal(err, look.Broken)
	}
	return look.Devices
}
