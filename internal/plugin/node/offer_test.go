// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// offered names the GPUs of which possible partitions are published, and whether each is published whole.
func (l *testNode) offered() string {
	var all []string
	whole := 0
	for _, d := range l.published {
		switch {
		case d.Partition == nil:
			whole++
		case !slices.Contains(all, gpu.ParentName(d.Name)):
			all = append(all, gpu.ParentName(d.Name))
		}
	}
	slices.Sort(all)
	return strings.TrimSpace(fmt.Sprint(whole, " whole; ", strings.Join(all, " ")))
}

// part records a claim on a partition of the GPU.
func (l *testNode) part(claim, of string) checkpoint.PreparedClaim {
	l.Helper()
	rec := l.hold(claim, of+"-mig-1g10gb-0")
	rec.Plan.Assignments[0].Partition = &sharing.AssignedPartition{Placement: gpu.Placement{
		Parent: gpu.UUID(strings.ToUpper(of)), Profile: "1g.10gb", Size: 1}}
	if err := l.records.Put(rec); err != nil {
		l.Fatal(err)
	}
	return rec
}

func TestPartitionsOnDemand(t *testing.T) {
	l := newTestNode(t)
	l.devices = nil
	for i := range 4 {
		l.devices = append(l.devices, gpu.Device{Name: fmt.Sprint("gpu-", i), UUID: gpu.UUID(fmt.Sprint("GPU-", i)),
			Type: gpu.TypeGPU, Index: i, PCI: gpu.PCIAddress{Bus: uint8(i)},
			MIG: gpu.MIG{Capable: true, Switchable: true,
				Profiles: []gpu.Profile{{Name: "1g.10gb", Size: 1, Slices: 1, Starts: []int{0, 1}}}}})
	}
	want := func(when, want string) {
		t.Helper()
		if err := l.look(); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if got := l.offered(); got != want {
			t.Errorf("%s: got %s, want %s", when, got, want)
		}
	}
	minute := func() {
		for name, since := range l.state.since {
			l.state.since[name] = since.Add(-withdrawAfter)
		}
	}
	want("without a configuration", "4 whole; gpu-0 gpu-1 gpu-2 gpu-3")
	l.write("default", configHead+"gpus: [{partitions: onDemand}]")
	want("GPUs of which partitions were published keep them while they are free", "4 whole; gpu-0 gpu-1 gpu-2 gpu-3")
	for i := range 3 {
		l.hold(fmt.Sprint("whole-", i), fmt.Sprint("gpu-", i))
	}
	want("held for a moment", "4 whole; gpu-0 gpu-1 gpu-2 gpu-3")
	minute()
	want("held for a minute", "4 whole; gpu-3")
	last := l.part("last", "gpu-3")
	want("used in parts", "4 whole; gpu-3")
	if err := l.records.Delete(checkpoint.PreparedClaim{Claim: sharing.Claim{UID: "whole-1"},
		Plan: sharing.Plan{Assignments: []sharing.Assignment{{Device: "gpu-1"}}}}); err != nil {
		t.Fatal(err)
	}
	want("a GPU is free again", "4 whole; gpu-1 gpu-3")
	l.restart(l.Options)
	want("after a restart", "4 whole; gpu-1 gpu-3")
	if err := l.records.Delete(last); err != nil {
		t.Fatal(err)
	}
	want("nothing is withdrawn from free GPUs", "4 whole; gpu-1 gpu-3")
	l.part("other", "gpu-1")
	want("one is used in parts, and one is spare", "4 whole; gpu-1 gpu-3")
	l.hold("whole-3", "gpu-3")
	want("the spare one is held for a moment", "4 whole; gpu-1 gpu-3")
	minute()
	want("the spare one is held", "4 whole; gpu-1")
	l.write("default", "")
	want("without a configuration again", "4 whole; gpu-0 gpu-1 gpu-2 gpu-3")
}

// What claims change is looked at at once where it may change what is published, and not otherwise.
func TestClaimsAskForADiscovery(t *testing.T) {
	l := newTestNode(t)
	for i := range l.devices {
		l.devices[i].MIG = gpu.MIG{Capable: true, Switchable: true,
			Profiles: []gpu.Profile{{Name: "1g.10gb", Size: 1, Slices: 1, Starts: []int{0}}}}
	}
	l.write("default", configHead+"gpus: [{partitions: onDemand}]")
	asks := func(event any) bool {
		l.state.asked, l.state.discovering = false, true // it stays so while one is under way
		l.turn(l.Context(), event)
		return l.state.asked
	}
	if err := l.look(); err != nil || l.offered() != "2 whole; gpu-1" {
		t.Fatal(l.offered(), err)
	}
	if asks(prepared{"gpu-0"}) || asks(released{}) {
		t.Error("a claim for another GPU asks for a discovery")
	}
	if !asks(prepared{"gpu-1-mig-1g10gb-0"}) {
		t.Error("a claim for a partition of the spare GPU asks for no discovery")
	}
	l.hold("a", "gpu-1")
	l.hold("b", "gpu-0")
	if err := l.look(); err != nil {
		t.Fatal(err)
	}
	if asks(prepared{"gpu-1"}) {
		t.Error("one more claim for a GPU that is held asks for a discovery")
	}
	if !asks(released{}) {
		t.Error("the end of a claim on a node without a spare GPU asks for no discovery")
	}
}
