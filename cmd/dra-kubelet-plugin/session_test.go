// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim"
)

func newScanner(t *testing.T, profile string) (*sim.Node, *scanner) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	p, err := sim.BuiltIn(profile)
	must(t, err)
	m, err := sim.Open(t.TempDir(), p)
	must(t, err)
	must(t, m.LayOut(sim.Programs{NvidiaSMI: os.Args[0]}))
	return m, &scanner{config: nvml.Config{Library: m.NVML(), Sysfs: m.DriverRoot() + "/sys", Proc: m.Proc(),
		Driver: nvml.DriverRoot{Host: m.DriverRoot(), Here: m.DriverRoot()}}}
}

// A session lasts as long as its library is the one on the disk.
func TestSession(t *testing.T) {
	_, s := newScanner(t, "t4-x2")
	look := func() gpu.Device {
		t.Helper()
		found, _, err := s.discover()
		must(t, err)
		return found.Inventory[0]
	}
	look()
	first := s.node
	look()
	if s.node != first {
		t.Error("a new session although nothing has changed")
	}
	library, err := s.config.Driver.Library()
	must(t, err)
	text, err := os.ReadFile(library)
	must(t, err)
	other := library + ".new"
	must(t, os.WriteFile(other, text, 0o644))
	must(t, os.Remove(library)) // the link
	must(t, os.Rename(other, library))
	look()
	if s.node == first {
		t.Error("the session with the old library goes on")
	}
}

// Where no GPU answers, claims can still be released.
func TestSessionWithoutAGPUThatAnswers(t *testing.T) {
	m, s := newScanner(t, "dgx-h100")
	found, _, err := s.discover()
	must(t, err)
	d := found.Inventory[0]
	for _, other := range found.Inventory {
		must(t, m.Unplug(other.Name))
	}
	for range 2 {
		lost, broken, err := s.discover()
		must(t, err)
		if len(broken) != len(found.Inventory) || !lost.Inventory[0].Lost {
			t.Fatalf("got %v, %v", lost.Inventory, broken)
		}
		at := gpu.Placement{Parent: d.UUID, Profile: "1g.10gb", Size: 1}
		must(t, lost.Hardware.Destroy(t.Context(), at, "MIG-1"))
		must(t, lost.Hardware.Configure(t.Context(), d.UUID, gpu.Settings{}, gpu.Settings{Mode: gpu.ExclusiveProcess}))
	}
	for _, other := range found.Inventory {
		must(t, m.Plug(other.Name))
	}
	if again, broken, err := s.discover(); err != nil || len(broken) > 0 || again.Inventory[0].Lost {
		t.Errorf("they are back: got %v, %v, %v", again.Inventory, broken, err)
	}
}
