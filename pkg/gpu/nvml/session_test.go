// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// following is a node that follows the driver on the disk.
func following(t *testing.T, profile string) (*simulator.Node, *nvml.Machine) {
	t.Helper()
	p, err := simulator.BuiltIn(profile)
	must(t, err)
	return followingProfile(t, p)
}

func followingProfile(t *testing.T, p simulator.Profile) (*simulator.Node, *nvml.Machine) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	m, err := simulator.Open(tmpfs.Dir(t), p)
	must(t, err)
	must(t, m.LayOut(simulator.Programs{NvidiaSMI: os.DevNull})) // a test that runs it lays out another
	return m, nvml.New(nvml.MachineConfig{Library: m.NVML(), Sysfs: m.DriverRoot() + "/sys", Proc: m.Proc(),
		Driver: driverroot.Root{Host: m.DriverRoot(), Here: m.DriverRoot()}})
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
	machine, err := simulator.Open(tmpfs.Dir(t), profile)
	must(t, err)
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	n := nvml.New(nvml.MachineConfig{
		Library: machine.NVML(),
		Sysfs:   filepath.Join(machine.DriverRoot(), "sys"),
		Driver:  driverroot.Root{Host: "/opt/nvidia", Here: machine.DriverRoot()},
	})
	if _, err := n.Discover(t.Context()); !errors.Is(err, driverroot.ErrNoDriver) || !strings.Contains(err.Error(),
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
		must(t, n.Set(t.Context(), d.UUID, gpu.DesiredState{Settings: &gpu.Settings{}}))
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
	n.Timeout = 3 * time.Second
	found, err := n.Discover(t.Context())
	must(t, err)
	sick, healthy := found.Devices[0], found.Devices[1]
	must(t, m.Slow(sick.Name, node.AllCalls, time.Hour))
	look, err := n.Discover(t.Context()) // which does not take an hour
	must(t, err)
	if len(look.Broken) != 1 || !errors.Is(look.Broken[0], nvml.ErrNoAnswer) || !look.Devices[0].Lost ||
		look.Devices[0].Gone || look.Devices[0].UUID != sick.UUID {
		t.Fatalf("got %v, %v", look.Devices[0], look.Broken)
	}
	if was, is := look.Answered[sick.UUID], look.Answered[healthy.UUID]; look.Devices[1].Lost ||
		!was.Equal(found.Answered[sick.UUID]) || !is.After(found.Answered[healthy.UUID]) {
		t.Errorf("got answers at %v, before at %v; want a newer one of %s alone", look.Answered, found.Answered,
			healthy.UUID)
	}
	// Whoever needs the sick one is told at once, and the others need not wait for it.
	for id, want := range map[gpu.UUID]error{sick.UUID: nvml.ErrNoAnswer, healthy.UUID: nil} {
		err := n.Set(t.Context(), id, gpu.DesiredState{Settings: &gpu.Settings{Mode: gpu.ExclusiveProcess},
			MIG: gpu.MIGOff})
		if !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v at once", id, err, want)
		}
	}
	must(t, m.Heal(sick.Name))
	eventually(t, "it answers again", func() bool {
		look, err := n.Discover(t.Context())
		must(t, err)
		return !look.Devices[0].Lost && len(look.Broken) == 0
	})
}

// The health says which GPUs are at the other ends of direct NVLinks.
func TestLinkPeers(t *testing.T) {
	for profile, bridged := range map[string]bool{"workstation": true, "dgx-h100": false} {
		_, n := machine(t, profile)
		look, err := n.Discover(t.Context())
		must(t, err)
		is, want := look.Health[look.Devices[0].UUID], map[int]gpu.PCIAddress{}
		for _, link := range is.LinksUp {
			if bridged { // the others lead to switches
				want[link] = look.Devices[1].PCI
			}
		}
		if len(is.LinksUp) == 0 || !maps.Equal(is.LinkPeers, want) {
			t.Errorf("%s: got links %v to %v, want %v", profile, is.LinksUp, is.LinkPeers, want)
		}
	}
}

// While the MIG mode of a GPU is being changed it is not asked, and counts as it was. The NVLinks of its peers may be
// off already, which says nothing.
func TestLookWhileTheMIGModeChanges(t *testing.T) {
	m, n := following(t, "dgx-h100")
	n.Timeout = 3 * time.Second
	found, err := n.Discover(t.Context())
	must(t, err)
	must(t, m.Inject(found.Devices[0].Name, "SetMigMode", node.Fault{Delay: time.Hour, Times: 1}))
	ended := make(chan error, 1)
	go func() { ended <- n.Set(t.Context(), found.Devices[0].UUID, gpu.DesiredState{MIG: gpu.MIGOn}) }()
	eventually(t, "the call that sets the mode", func() bool {
		v, err := m.View()
		must(t, err)
		return v.GPUs[0].State.Delays["SetMigMode"].Spent
	})
	n.Recheck(found.Devices[1].UUID)
	look, err := n.Discover(t.Context())
	must(t, err)
	must(t, m.Heal(found.Devices[0].Name))
	other := found.Devices[1].UUID
	if was, is := found.Health[other].LinksUp, look.Health[other].LinksUp; len(was) == 0 || is != nil {
		t.Errorf("got the links %v of another GPU, and before it %v; want none known meanwhile", is, was)
	}
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
	must(t, n.Set(t.Context(), id, gpu.DesiredState{MIG: gpu.MIGOn}))
	at := gpu.Placement{Parent: id, Profile: "1g.10gb", Start: 0, Size: 1}
	part, err := n.CreatePartition(t.Context(), at, "")
	must(t, err)
	if look, err := n.Discover(t.Context()); err != nil || len(look.Devices[0].MIG.Instances) != 1 {
		t.Fatalf("before: got %v, error %v", look.Devices, err)
	}
	must(t, n.DestroyPartition(t.Context(), at, part))
	must(t, m.Inject(found.Devices[0].Name, "SetMigMode", node.Fault{Delay: time.Hour, Times: 1}))
	ended := make(chan error, 1)
	go func() { ended <- n.Set(t.Context(), id, gpu.DesiredState{MIG: gpu.MIGOff}) }()
	eventually(t, "the call that sets the mode", func() bool {
		v, err := m.View()
		must(t, err)
		return v.GPUs[0].State.Delays["SetMigMode"].Spent
	})
	look, err := n.Discover(t.Context())
	must(t, err)
	must(t, m.Heal(found.Devices[0].Name))
	if d := look.Devices[0]; len(d.MIG.Instances) > 0 || !d.MIG.Enabled {
		t.Errorf("while the mode is switched off: got %+v, want MIG mode on, without partitions", d.MIG)
	}
	must(t, <-ended)
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(hangs); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// hangs is when a test gives up. Only a mistake takes so long, on any machine.
const hangs = 5 * time.Minute
