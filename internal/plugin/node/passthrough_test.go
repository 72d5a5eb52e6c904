// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// vmNode is a testNode of which virtual machines can have gpu-0.
type vmNode struct{ *testNode }

func newVMNode(t *testing.T) vmNode {
	l := vmNode{newTestNode(t)}
	l.devices[0].Product.Name = "NVIDIA L40S"
	l.devices[0].VFIO = &gpu.VFIO{Group: 42,
		Functions: []gpu.PCIFunction{{PCI: gpu.PCIAddress{Bus: 1}, Driver: "nvidia"}}}
	return l
}

// bind makes NVML list gpu-0 no more. The driver is what has it.
func (l vmNode) bind(driver string) {
	l.devices = slices.DeleteFunc(l.devices, func(d gpu.Device) bool { return d.Name == "gpu-0" })
	l.unlisted = []gpu.Device{{Name: "gpu-0", Type: gpu.TypeGPU, Index: -1, PCI: gpu.PCIAddress{Bus: 1},
		VFIO: &gpu.VFIO{Group: 42, Bound: driver == "vfio-pci"}}}
}

// claim records a claim with gpu-0 for a virtual machine.
func (l vmNode) claim() checkpoint.PreparedClaim {
	l.Helper()
	rec := checkpoint.PreparedClaim{Claim: sharing.Claim{Namespace: "ns", Name: "vm", UID: "vm"},
		Phase: checkpoint.Prepared, Plan: sharing.Plan{Assignments: []sharing.Assignment{{Device: "gpu-0-vfio",
			GPU: "GPU-0", VFIO: &sharing.AssignedVFIO{PCI: gpu.PCIAddress{Bus: 1},
				Functions: []gpu.PCIFunction{{PCI: gpu.PCIAddress{Bus: 1}, Driver: "nvidia"}}}}}}}
	if err := l.records.Put(rec); err != nil {
		l.Fatal(err)
	}
	return rec
}

// is runs a discovery, and compares the published devices with their UUIDs, the GPUs that answer, and the events.
func (l vmNode) is(when, want string) {
	l.Helper()
	if err := l.look(); err != nil {
		l.Fatal(err)
	}
	var got []string
	for _, d := range l.published {
		text := d.Name + "=" + string(d.UUID)
		if d.Lost {
			text += " lost"
		}
		if d.Type == gpu.TypeVFIO && d.Product.Name == "" {
			text += " of an unknown model"
		}
		if d.Blocked != "" {
			text += " blocked"
		}
		for _, t := range d.Taints {
			text += " " + strings.TrimPrefix(t.Key, "gpu.nvidia.com/")
		}
		got = append(got, text)
	}
	var present []string
	for _, d := range l.Inventory().Present() {
		present = append(present, d.Name)
	}
	all := []string{strings.Join(got, ", ") + "; " + strings.Join(present, " ")}
	for _, event := range l.recorded {
		if !strings.Contains(event, "DeviceUnhealthy") { // its text has the time
			all = append(all, event)
		}
	}
	l.recorded = nil
	if got := strings.Join(all, "\n"); got != want {
		l.Errorf("%s:\ngot\n%s\nwant\n%s", when, got, want)
	}
}

const (
	offered = "gpu-0=GPU-0, gpu-1=GPU-1, gpu-0-vfio=GPU-0; gpu-0 gpu-1"
	away    = "gpu-0=GPU-0 unmonitored, gpu-1=GPU-1, gpu-0-vfio=GPU-0 unmonitored; gpu-1"
	byAdmin = "gpu-1=GPU-1, gpu-0-vfio=gpu-0-vfio of an unknown model unmonitored; gpu-1"
)

// A GPU that NVML does not list because a virtual machine has it is not lost.
func TestGPUInAVirtualMachine(t *testing.T) {
	l := newVMNode(t)
	card := l.devices[0]
	l.is("nobody has it", offered)
	rec := l.claim()
	l.is("a claim has it", offered)
	l.bind("")
	l.is("it has no driver for a moment", away)
	l.bind("vfio-pci")
	l.is("the virtual machine has it", away)
	l.restart(l.Options)
	l.is("the plugin starts anew", away)
	if d, _ := l.Inventory().Find("gpu-0-vfio"); d.Product.Name != "NVIDIA L40S" || len(d.VFIO.Functions) != 1 {
		t.Errorf("its properties: got %+v, want the known ones", d)
	}
	if state := l.state.health.States()["GPU-0"].State; state != "unmonitored" {
		t.Errorf("health: got %s, want unmonitored", state)
	}
	l.write("default", configHead+"gpus: [{passthrough: false}]")
	const mode, without = "fractional, isolation mps", "fractional, isolation mps, no passthrough"
	l.is("the administrator wants it back", away+"\nNormal ModeChangePending: GPU gpu-0 (GPU-0) will change from "+mode+
		" to "+without+" when these claims have ended: ns/vm\nNormal ModeChanged: GPU gpu-1 (GPU-1) changed from "+mode+
		" to "+without)
	l.write("default", "")
	l.is("not any more", away+"\nNormal ModeChanged: GPU gpu-1 (GPU-1) changed from "+without+" to "+mode)
	l.unlisted = nil
	l.is("it vanishes from the bus", "gpu-0=GPU-0 lost gpu-lost, gpu-1=GPU-1, gpu-0-vfio=GPU-0 lost gpu-lost; gpu-1\n"+
		"Warning GPULost: GPU gpu-0 (NVIDIA L40S, GPU-0) does not answer any more")
	l.bind("vfio-pci")
	if err := l.look(); err != nil {
		t.Fatal(err)
	}
	l.recorded = nil // that it was lost ends
	l.release(rec)
	l.devices, l.unlisted = slices.Insert(l.devices, 0, card), nil
	if err := l.look(); err != nil {
		t.Fatal(err)
	}
	if d, _ := l.Inventory().Find("gpu-0"); d.Lost || d.InVM() {
		t.Errorf("it has been returned: got %+v", d)
	}
}

// The index is that of a card, whatever NVML numbers it while others are away: a node configuration that selects by it
// means the same card.
func TestAGPUKeepsItsIndex(t *testing.T) {
	l := newVMNode(t)
	card := func(name string, bus uint8) gpu.Device {
		return gpu.Device{Name: "gpu-" + name, UUID: gpu.UUID("GPU-" + name), Type: gpu.TypeGPU,
			PCI: gpu.PCIAddress{Bus: bus}}
	}
	cards := append(l.devices, card("2", 3), card("3", 4))
	nvml := func(devices ...gpu.Device) { // numbers what it lists
		l.devices = slices.Clone(devices)
		for i := range l.devices {
			l.devices[i].Index = i
		}
	}
	back := func() { nvml(cards...); l.unlisted = nil }
	l.write("default", configHead+"gpus: [{select: {index: 3}, sharing: exclusive}]")
	var rec checkpoint.PreparedClaim
	for _, row := range []struct {
		name   string
		change func()
		want   string // the index of each GPU, and which one the configuration selects
	}{
		{"all are listed", back, "gpu-0 0, gpu-1 1, gpu-2 2, gpu-3 3 exclusive"},
		{"a virtual machine has the first", func() { rec = l.claim(); l.bind("vfio-pci"); nvml(l.devices...) },
			"gpu-0 0, gpu-1 1, gpu-2 2, gpu-3 3 exclusive"},
		{"the plugin starts anew meanwhile", func() { l.restart(l.Options) },
			"gpu-0 0, gpu-1 1, gpu-2 2, gpu-3 3 exclusive"},
		{"it is back", func() { l.release(rec); back() }, "gpu-0 0, gpu-1 1, gpu-2 2, gpu-3 3 exclusive"},
		{"two have changed places", func() {
			cards[2].Name, cards[3].Name, cards[2].PCI, cards[3].PCI = "gpu-3", "gpu-2", cards[3].PCI, cards[2].PCI
			cards[2], cards[3] = cards[3], cards[2]
			back()
		}, "gpu-0 0, gpu-1 1, gpu-2 3 exclusive, gpu-3 2"},
		{"one is removed for good", func() { l.removed = "GPU-1"; nvml(cards[0], cards[2], cards[3]) },
			"gpu-0 0, gpu-2 3 exclusive, gpu-3 2"},
		{"the plugin starts anew", func() { l.restart(l.Options) }, "gpu-0 0, gpu-2 3 exclusive, gpu-3 2"},
		{"another one is in its place", func() { cards[1].UUID = "GPU-new"; back() },
			"gpu-0 0, gpu-1 1, gpu-2 3 exclusive, gpu-3 2"},
		{"one more comes before them", func() { cards = append([]gpu.Device{card("00", 0)}, cards...); back() },
			"gpu-0 0, gpu-00 4, gpu-1 1, gpu-2 3 exclusive, gpu-3 2"},
	} {
		row.change()
		if err := l.look(); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range l.published.GPUs() {
			text := fmt.Sprint(d.Name, " ", d.Index)
			if d.Use.Sharing == gpu.Exclusive {
				text += " exclusive"
			}
			got = append(got, text)
		}
		slices.Sort(got)
		if got := strings.Join(got, ", "); got != row.want {
			t.Errorf("%s:\ngot  %s\nwant %s", row.name, got, row.want)
		}
	}
}

// An older version has saved the indexes that NVML told while a GPU was away: two have the same one.
func TestIndexesAreUnique(t *testing.T) {
	one := func(uuid gpu.UUID, index int, v *gpu.VFIO) gpu.Device {
		return gpu.Device{Name: "gpu-" + strings.ToLower(string(uuid)), UUID: uuid, Index: index, VFIO: v}
	}
	known := inventory.Inventory{one("A", 0, nil), one("B", 1, nil), one("C", 1, nil)}
	byHand := &gpu.VFIO{Bound: true}
	inAClaim := &gpu.VFIO{Bound: true, Functions: []gpu.PCIFunction{{}}}
	got := withIndexes(inventory.Inventory{one("A", 0, nil), one("B", 1, inAClaim), one("C", 1, nil),
		one("D", -1, byHand), one("E", -1, byHand), one("F", -1, inAClaim)}, known)
	var text []string
	for _, d := range got {
		text = append(text, fmt.Sprint(d.UUID, " ", d.Index))
	}
	if got, want := strings.Join(text, ", "), "A 0, B 1, C 2, D -1, E -1, F 3"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Nothing but the record is known of the GPU.
func TestGPUInAVirtualMachineAtTheFirstDiscovery(t *testing.T) {
	l := newVMNode(t)
	l.claim()
	l.bind("vfio-pci")
	l.is("it is in a virtual machine", "gpu-0=GPU-0 unmonitored, gpu-1=GPU-1, gpu-0-vfio=GPU-0 of an unknown model "+
		"unmonitored; gpu-1")
}

func TestGPUBoundByHand(t *testing.T) {
	l := newVMNode(t)
	l.is("nobody has bound it", offered)
	l.bind("vfio-pci")
	l.is("the administrator has", byAdmin)
	l.bind("nouveau")
	l.is("another driver has it", "gpu-1=GPU-1, gpu-0-vfio=gpu-0-vfio lost of an unknown model gpu-lost; gpu-1\n"+
		"Warning GPULost: GPU gpu-0 (, gpu-0-vfio) does not answer any more")
}

// For a claim with the whole GPU it is lost.
func TestGPUOfAContainerBoundByHand(t *testing.T) {
	l := newVMNode(t)
	l.is("nobody has bound it", offered)
	l.hold("a", "gpu-0")
	l.bind("vfio-pci")
	l.is("the administrator has", "gpu-0=GPU-0 lost gpu-lost, gpu-1=GPU-1, gpu-0-vfio=GPU-0 lost gpu-lost; gpu-1\n"+
		"Warning GPULost: GPU gpu-0 (NVIDIA L40S, GPU-0) does not answer any more")
}

// Nothing but the record is known of the GPU, and the administrator keeps GPUs from virtual machines now.
func TestGPUInAVirtualMachineThatTheAdministratorWantsBack(t *testing.T) {
	l := newVMNode(t)
	l.claim()
	l.bind("vfio-pci")
	l.write("default", configHead+"gpus: [{passthrough: false}]")
	const mode = "fractional, isolation mps"
	l.is("it is in a virtual machine", "gpu-0=GPU-0 unmonitored, gpu-1=GPU-1, gpu-0-vfio=GPU-0 of an unknown model "+
		"unmonitored; gpu-1\nNormal ModeChangePending: GPU gpu-0 (GPU-0) will change from "+mode+" to "+mode+
		", no passthrough when these claims have ended: ns/vm")
}

// A record that cannot be read may be about the virtual machine.
func TestGPUInAVirtualMachineWithAnUnreadableRecord(t *testing.T) {
	l := newVMNode(t)
	l.claim()
	l.bind("vfio-pci")
	known := inventory.Inventory{{Name: "gpu-0", UUID: "GPU-0", VFIO: &gpu.VFIO{Bound: true,
		Functions: []gpu.PCIFunction{{Driver: "nvidia"}}}}}
	f := &found{records: records{incomplete: checkpoint.ErrUnreadable}}
	f.Unlisted = l.unlisted
	if got := withPassthrough(f, known, nil); len(got) != 1 || got[0].UUID != "GPU-0" || got[0].VFIO.External() {
		t.Errorf("got %+v, want what was known", got)
	}
}

func TestRefusedPassthrough(t *testing.T) {
	mode := func(name string) string {
		return "Normal ModeChanged: GPU " + name + " (" + strings.ToUpper(name) + ") changed from fractional, " +
			"isolation mps to fractional, isolation mps, no passthrough"
	}
	l := newVMNode(t)
	l.devices[0].VFIO.Refusal = "the GPU 0000:02:00.0 is in the same IOMMU group"
	const without = "gpu-0=GPU-0, gpu-1=GPU-1; gpu-0 gpu-1"
	l.is("something is in the way", without+"\nWarning PassthroughRefused: GPU gpu-0 cannot be given to "+
		"virtual machines: the GPU 0000:02:00.0 is in the same IOMMU group")
	l.is("it still is", without)
	l.restart(l.Options)
	l.is("also for the next instance", without)
	l.devices[0].VFIO = &gpu.VFIO{Refusal: "the machine has an NVSwitch"}
	l.devices[1].VFIO = l.devices[0].VFIO
	l.is("for all GPUs", without+"\nWarning PassthroughRefused: GPU gpu-0, gpu-1 cannot be given to virtual machines: "+
		"the machine has an NVSwitch")
	l.VirtualMachines = false
	l.restart(l.Options)
	l.is("nobody asks for virtual machines", without+"\n"+mode("gpu-0")+"\n"+mode("gpu-1"))
}

// Programs that have a GPU open, or a claim that cannot have it bound, keep other claims from its device for virtual
// machines, until they let it go.
func TestProgramsKeepAGPUFromVirtualMachines(t *testing.T) {
	const (
		blocked  = "gpu-0=GPU-0, gpu-1=GPU-1, gpu-0-vfio=GPU-0 blocked; gpu-0 gpu-1"
		reported = "\nWarning PassthroughBlocked: GPU gpu-0 (GPU-0) cannot be given to virtual machines now: "
	)
	l := newVMNode(t)
	c := l.Options
	c.FindUsers, l.openers = true, map[gpu.UUID]string{"GPU-0": "exporter", "GPU-1": "exporter"}
	l.restart(c)
	l.is("at first another instance may have it open", offered)
	l.is("a program has it open", blocked+reported+"used by exporter")
	l.openers["GPU-0"] = "exporter Xorg"
	l.is("another one, too", blocked)
	l.restart(c)
	l.is("the plugin starts anew", blocked)
	delete(l.openers, "GPU-0")
	l.is("they let it go", offered)

	rec := l.claim()
	asked := func(err error) bool {
		l.turn(l.Context(), gpuBound{"GPU-0", err}) // which begins the discovery that it asks for
		asked := l.state.discovering
		l.state.discovering = false
		return asked
	}
	if !asked(gpu.ErrBusy) {
		t.Error("a GPU that cannot be bound is not looked at")
	}
	l.is("a claim waits for it", blocked+reported+gpu.ErrBusy.Error())
	if asked(gpu.ErrBusy) {
		t.Error("it is looked at each time that the claim tries again")
	}
	if !asked(nil) {
		t.Error("a GPU that was bound is not looked at")
	}
	l.bind("vfio-pci")
	l.is("the claim has it", away)
	l.release(rec)
}

// A GPU that cannot be returned to its driver is lost, until it can.
func TestGPUThatDoesNotComeBack(t *testing.T) {
	l := newVMNode(t)
	card := l.devices[0]
	rec := l.claim()
	l.is("a claim has it", offered)
	l.bind("vfio-pci")
	l.is("it is in a virtual machine", away)
	l.bind("")
	const stuck = "gpu-0=GPU-0 lost gpu-lost, gpu-1=GPU-1, gpu-0-vfio=GPU-0 lost gpu-lost; gpu-1"
	returned := func(err error) bool {
		l.turn(l.Context(), gpuReturned{"GPU-0", err})
		asked := l.state.discovering
		l.state.discovering = false
		return asked
	}
	if returned(gpu.ErrBusy) {
		t.Error("a virtual machine that has not ended: the GPU is looked at again")
	}
	l.is("the virtual machine has not ended", away)
	failure := errors.New("reset: input/output error")
	if !returned(failure) || returned(failure) {
		t.Error("it is looked at never, or each time that the return is tried")
	}
	l.is("it cannot be reset", stuck+"\nWarning GPULost: GPU gpu-0 (NVIDIA L40S, GPU-0) does not answer any more")
	l.is("it still cannot", stuck)
	l.release(rec)
	l.devices, l.unlisted = slices.Insert(l.devices, 0, card), nil
	if !returned(nil) {
		t.Error("it is not looked at")
	}
	if err := l.look(); err != nil {
		t.Fatal(err)
	}
	if d, _ := l.Inventory().Find("gpu-0"); d.Lost || d.InVM() {
		t.Errorf("it is back: got %+v", d)
	}
}
