// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// following is a node that follows the driver on the disk.
func following(t *testing.T, profile string) (*simulator.Node, *nvml.Node) {
	t.Helper()
	p, err := simulator.BuiltIn(profile)
	must(t, err)
	return followingProfile(t, p)
}

func followingProfile(t *testing.T, p simulator.Profile) (*simulator.Node, *nvml.Node) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	m, err := simulator.Open(t.TempDir(), p)
	must(t, err)
	must(t, m.LayOut(simulator.Programs{NvidiaSMI: os.Args[0]}))
	return m, nvml.New(nvml.Config{Library: m.NVML(), Sysfs: m.DriverRoot() + "/sys", Proc: m.Proc(),
		Driver: nvml.DriverRoot{Host: m.DriverRoot(), Here: m.DriverRoot()}})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A session lasts as long as its library is the one on the disk.
func TestSession(t *testing.T) {
	_, n := following(t, "t4-x2")
	look := func() {
		t.Helper()
		_, err := n.Discover(t.Context())
		must(t, err)
	}
	look()
	if n.DriverChanged() {
		t.Error("the driver has changed although nothing has happened")
	}
	library, err := n.Driver.Library()
	must(t, err)
	text, err := os.ReadFile(library)
	must(t, err)
	other := library + ".new"
	must(t, os.WriteFile(other, text, 0o644))
	must(t, os.Remove(library)) // the link
	must(t, os.Rename(other, library))
	if !n.DriverChanged() {
		t.Error("another library is not noticed")
	}
	look()
	if n.DriverChanged() {
		t.Error("the session with the old library goes on")
	}
}

// The driver is installed while somebody waits for it.
func TestSessionWaitsForTheDriver(t *testing.T) {
	profile, err := simulator.BuiltIn("t4-x2")
	must(t, err)
	machine, err := simulator.Open(t.TempDir(), profile)
	must(t, err)
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	n := nvml.New(nvml.Config{
		Library: machine.NVML(),
		Sysfs:   filepath.Join(machine.DriverRoot(), "sys"),
		Driver:  nvml.DriverRoot{Host: "/opt/nvidia", Here: machine.DriverRoot()},
	})
	if _, err := n.Discover(t.Context()); !errors.Is(err, nvml.ErrNoDriver) || !strings.Contains(err.Error(),
		"/opt/nvidia") {
		t.Errorf("without a driver: got %v", err)
	}
	must(t, machine.LayOut(simulator.Programs{}))
	if look, err := n.Discover(t.Context()); err != nil || len(look.Broken) > 0 || len(look.Devices) != 2 {
		t.Errorf("with a driver: got %v, %v", look, err)
	}
}

// Where no GPU answers, claims can still be released.
func TestSessionWithoutHealthyGPU(t *testing.T) {
	m, n := following(t, "dgx-h100")
	found, err := n.Discover(t.Context())
	must(t, err)
	d := found.Devices[0]
	for _, other := range found.Devices {
		must(t, m.Unplug(other.Name))
	}
	for range 2 {
		lost, err := n.Discover(t.Context())
		must(t, err)
		if len(lost.Broken) != len(found.Devices) || !lost.Devices[0].Lost {
			t.Fatalf("got %v", lost)
		}
		must(t, n.DestroyPartition(t.Context(), gpu.Placement{Parent: d.UUID, Profile: "1g.10gb", Size: 1}, "MIG-1"))
		must(t, n.Set(t.Context(), d.UUID, gpu.State{Settings: &gpu.Settings{}}))
	}
	for _, other := range found.Devices {
		must(t, m.Plug(other.Name))
	}
	if again, err := n.Discover(t.Context()); err != nil || len(again.Broken) > 0 || again.Devices[0].Lost {
		t.Errorf("they are back: got %v, %v", again, err)
	}
}

// A GPU that hangs keeps nobody from the others: it is lost until its call returns, and nothing else is asked of it.
func TestHangingGPU(t *testing.T) {
	m, n := following(t, "dgx-h100")
	n.Timeout = 300 * time.Millisecond
	found, err := n.Discover(t.Context())
	must(t, err)
	sick, healthy := found.Devices[0], found.Devices[1]
	must(t, m.Slow(sick.Name, node.AllCalls, 2*time.Second))
	begin := time.Now()
	look, err := n.Discover(t.Context())
	must(t, err)
	if took := time.Since(begin); took > time.Second {
		t.Errorf("a look took %s", took)
	}
	if len(look.Broken) != 1 || !errors.Is(look.Broken[0], nvml.ErrNoAnswer) || !look.Devices[0].Lost ||
		look.Devices[0].UUID != sick.UUID {
		t.Fatalf("got %v, %v", look.Devices[0], look.Broken)
	}
	if look.Devices[1].Lost || time.Since(look.Answered[healthy.UUID]) > time.Second ||
		time.Since(look.Answered[sick.UUID]) < 300*time.Millisecond {
		t.Errorf("got %v", look.Answered)
	}
	// Whoever needs the sick one is told at once, and the others need not wait for it.
	for id, want := range map[gpu.UUID]error{sick.UUID: nvml.ErrNoAnswer, healthy.UUID: nil} {
		begin := time.Now()
		err := n.Set(t.Context(), id, gpu.State{Settings: &gpu.Settings{Mode: gpu.ExclusiveProcess}, MIG: gpu.MIGOff})
		if took := time.Since(begin); !errors.Is(err, want) || took > time.Second {
			t.Errorf("%s: got %v after %s, want %v at once", id, err, took, want)
		}
	}
	must(t, m.Heal(sick.Name))
	eventually(t, "it answers again", func() bool {
		look, err := n.Discover(t.Context())
		must(t, err)
		return !look.Devices[0].Lost && len(look.Broken) == 0
	})
}

// While the MIG mode of a GPU is being changed it is not asked, and counts as it was.
func TestLookWhileTheMIGModeChanges(t *testing.T) {
	m, n := following(t, "dgx-h100")
	n.Timeout = 300 * time.Millisecond
	found, err := n.Discover(t.Context())
	must(t, err)
	must(t, m.Slow(found.Devices[0].Name, "SetMigMode", time.Second))
	ended := make(chan error, 1)
	go func() { ended <- n.Set(t.Context(), found.Devices[0].UUID, gpu.State{MIG: gpu.MIGOn}) }()
	time.Sleep(100 * time.Millisecond)
	look, err := n.Discover(t.Context())
	must(t, err)
	if len(look.Broken) > 0 || look.Devices[0].Lost || look.Devices[0].MIG.Enabled {
		t.Errorf("got %v, %v", look.Devices[0], look.Broken)
	}
	must(t, <-ended)
	if look, err := n.Discover(t.Context()); err != nil || !look.Devices[0].MIG.Enabled {
		t.Errorf("after it: got %v, %v", look.Devices[0], err)
	}
}

// The last partitions of a GPU were removed after the last look. While its MIG mode is switched off, a look must not
// find them: with the records of their claims gone, they would be somebody else's.
func TestLookAfterTheLastPartition(t *testing.T) {
	m, n := following(t, "dgx-h100")
	found, err := n.Discover(t.Context())
	must(t, err)
	id := found.Devices[0].UUID
	must(t, n.Set(t.Context(), id, gpu.State{MIG: gpu.MIGOn}))
	at := gpu.Placement{Parent: id, Profile: "1g.10gb", Start: 0, Size: 1}
	part, err := n.CreatePartition(t.Context(), at, "")
	must(t, err)
	if look, err := n.Discover(t.Context()); err != nil || len(look.Devices[0].MIG.Instances) != 1 {
		t.Fatalf("before: got %v, error %v", look.Devices, err)
	}
	must(t, n.DestroyPartition(t.Context(), at, part))
	must(t, m.Slow(found.Devices[0].Name, "SetMigMode", time.Second))
	ended := make(chan error, 1)
	go func() { ended <- n.Set(t.Context(), id, gpu.State{MIG: gpu.MIGOff}) }()
	time.Sleep(300 * time.Millisecond)
	look, err := n.Discover(t.Context())
	must(t, err)
	if d := look.Devices[0]; len(d.MIG.Instances) > 0 || !d.MIG.Enabled {
		t.Errorf("while the mode is switched off: got %+v, want MIG mode on, without partitions", d.MIG)
	}
	must(t, <-ended)
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}
