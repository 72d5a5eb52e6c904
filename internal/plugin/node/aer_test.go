// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// simulated returns a testNode with the GPUs of a simulated machine.
func simulated(t *testing.T, profile string) (*testNode, *simulator.Node) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	p, err := simulator.BuiltIn(profile)
	if err != nil {
		t.Fatal(err)
	}
	sim, err := simulator.Open(tmpfs.Dir(t), p)
	if err == nil {
		err = sim.LayOut(simulator.Programs{})
	}
	if err != nil {
		t.Fatal(err)
	}
	l, root := newTestNode(t), sim.DriverRoot()
	machine, err := nvml.Open(nvml.MachineConfig{Library: sim.NVML(), Sysfs: root + "/sys", WriteSysfs: sim.WriteSysfs,
		Dev: root + "/dev", Proc: sim.Proc(), Driver: driverroot.Root{Host: root, Here: root},
		Timeout: simtest.Patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := machine.Close(); err != nil {
			t.Error(err)
		}
	})
	l.Options.Machine = machine
	l.restart(l.Options)
	return l, sim
}

// sick runs a discovery, and compares the taints of sick GPUs: "gpu-38-00-0 AERFatal".
func (l *testNode) sick(when string, want ...string) {
	l.Helper()
	if err := l.look(); err != nil {
		l.Fatal(err)
	}
	var got []string
	for _, d := range l.published {
		for _, t := range d.Taints {
			if t.Key == inventory.TaintUnhealthy && t.Effect == "NoSchedule" {
				got = append(got, d.Name+" "+t.Value)
			}
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		l.Errorf("%s: got %q, want %q", when, got, want)
	}
}

// From the files of sysfs to the published taints, also of a GPU about which NVML says nothing.
func TestPCIeErrors(t *testing.T) {
	l, sim := simulated(t, "l40s-x4")
	count := func(kind string) {
		t.Helper()
		if err := sim.CountAER("gpu-38-00-0", kind, 2); err != nil {
			t.Fatal(err)
		}
	}
	const fatal, fatalVM = "gpu-38-00-0 AERFatal", "gpu-38-00-0-vfio AERFatal"
	count("fatal")
	l.sick("before the plugin started")
	count("correctable")
	l.sick("a corrected error")
	count("nonfatal")
	l.sick("an error that left the link usable", "gpu-38-00-0 AERNonfatal", "gpu-38-00-0-vfio AERNonfatal")
	l.state.health.Save(t.Context(), l.now())
	count("fatal")
	l.restart(l.Options)
	l.sick("a fatal one while the plugin starts anew", fatal, fatalVM)
	if err := health.RequestClear(l.Dir, "gpu-38-00-0"); err != nil {
		t.Fatal(err)
	}
	l.sick("a person has cleared it")

	card, _ := l.Inventory().Find("gpu-38-00-0")
	vm := sharing.Assignment{Device: gpu.VFIOName(card.Name), GPU: card.UUID,
		VFIO: &sharing.AssignedVFIO{PCI: card.PCI, Functions: card.VFIO.Functions}}
	if err := l.records.Put(checkpoint.PreparedClaim{Claim: sharing.Claim{Namespace: "ns", Name: "vm", UID: "vm"},
		Phase: checkpoint.Prepared, Plan: sharing.Plan{Assignments: []sharing.Assignment{vm}}}); err != nil {
		t.Fatal(err)
	}
	machine := l.Options.Machine.(*nvml.Machine)
	if err := machine.BindVFIO(t.Context(), card.UUID, card.VFIO.Functions); err != nil {
		t.Fatal(err)
	}
	l.sick("in a virtual machine")
	count("fatal")
	l.sick("a fatal one there", fatal, fatalVM)
	l.sick("it has not ended", fatal, fatalVM)
	if err := machine.ReturnVFIO(t.Context(), card.UUID, card.VFIO.Functions, true); err != nil {
		t.Fatal(err)
	}
	l.sick("the GPU has been reset and returned")
}
