// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Programs that belong to no claim block the MIG mode of their GPU from the second discovery on that finds them, and at
// the first discovery of the driver.
func TestBlockedByPrograms(t *testing.T) {
	l := newTestNode(t)
	for i := range l.devices {
		l.devices[i].MIG = gpu.MIG{Capable: true, Switchable: true,
			Profiles: []gpu.Profile{{Name: "1g.10gb", Size: 1, Starts: []int{0}}}}
	}
	users := map[gpu.UUID]string{"GPU-0": "exporter"}
	c := l.Options
	c.FindUsers, l.users = true, users
	l.restart(c)
	discovered := func(when, want string) {
		t.Helper()
		if err := l.look(); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range l.Inventory() {
			if d.Blocked != "" {
				got = append(got, d.Name+": "+d.Blocked)
			}
		}
		if text := strings.Join(got, "; "); text != want {
			t.Errorf("%s: got %q, want %q", when, text, want)
		}
	}
	const first, second = "gpu-0-mig-1g10gb-0: used by exporter", "gpu-1-mig-1g10gb-0: used by server"
	discovered("the first discovery", first)
	users["GPU-1"] = "server"
	discovered("a program begins", first)
	discovered("it goes on", second+"; "+first)
	users["GPU-1"] = "server other"
	discovered("another one begins", second+"; "+first)
	delete(users, "GPU-1")
	discovered("both end", first)

	rec := l.hold("c", "gpu-1")
	users["GPU-1"] = "server"
	discovered("a program of a claim", first)
	if err := l.records.Delete(rec); err != nil {
		t.Fatal(err)
	}
	discovered("the claim has ended, its program has not", first)
	discovered("it does not end", second+"; "+first)

	// A change of MIG mode that has failed blocks the GPU for a while, and then the program does, without a pause.
	delete(users, "GPU-1")
	discovered("it ends", first)
	l.turn(t.Context(), modeNotSet{"GPU-1", gpu.ErrBusy})
	busy := "gpu-1-mig-1g10gb-0: " + gpu.ErrBusy.Error()
	discovered("a change has failed", busy+"; "+first)
	users["GPU-1"] = "exporter"
	l.Node.state.blocked["GPU-1"] = blocked{gpu.ErrBusy.Error(), time.Now().Add(-time.Second)}
	discovered("the failure is forgotten, and a program is there", busy+"; "+first)
}

// hardware answers every change with an error, or nil.
type hardware struct {
	claims.Hardware
	err error
}

func (h hardware) Set(context.Context, gpu.UUID, gpu.DesiredState) error { return h.err }

func (h hardware) CreatePartition(context.Context, gpu.Placement, gpu.UUID) (gpu.UUID, error) {
	return "", h.err
}

// A partition that NVML refuses to a claim is blocked for a minute, also on a GPU that has partitions.
func TestRefusedPartition(t *testing.T) {
	l := newTestNode(t)
	there := gpu.Placement{Parent: "GPU-0", Profile: "1g.10gb", Start: 2, Size: 1}
	l.devices[0].MIG = gpu.MIG{Capable: true, Enabled: true, Switchable: true,
		Profiles:  []gpu.Profile{{Name: "1g.10gb", Size: 1, Starts: []int{0, 1, 2}}},
		Instances: []gpu.Partition{{Placement: there, UUID: "MIG-2"}}}
	rec := l.hold("c", "gpu-0-mig-1g10gb-2")
	rec.Plan.Assignments[0].Partition = &sharing.AssignedPartition{Placement: there, UUID: "MIG-2"}
	if err := l.records.Put(rec); err != nil {
		t.Fatal(err)
	}
	blockedNow := func() (names string) {
		t.Helper()
		if err := l.look(); err != nil {
			t.Fatal(err)
		}
		for _, d := range l.Inventory() {
			if d.Blocked != "" {
				names += d.Name + ": " + d.Blocked + "; "
			}
		}
		return names
	}
	at := gpu.Placement{Parent: "GPU-0", Profile: "1g.10gb", Start: 1, Size: 1}
	refused := errors.New("create GPU instance: ERROR_INSUFFICIENT_RESOURCES")
	hw := l.Hardware(hardware{err: refused})
	if _, err := hw.CreatePartition(t.Context(), there, "MIG-2"); !errors.Is(err, refused) { // that of the claim
		t.Fatal(err)
	}
	if _, err := hw.CreatePartition(t.Context(), at, ""); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if got, want := blockedNow(), "gpu-0-mig-1g10gb-1: "+refused.Error()+"; "; got != want {
		t.Errorf("after a refusal: got %q, want %q", got, want)
	}
	l.Node.state.refused[at] = blocked{refused.Error(), time.Now().Add(-time.Second)}
	if got := blockedNow(); got != "" {
		t.Errorf("a minute later: got %q, want nothing blocked", got)
	}
}

// A change of the MIG mode that could not be made blocks the GPU until a change takes place, or the GPU is reset. That
// a claim needs no change says nothing.
func TestWhatEndsABlock(t *testing.T) {
	const still, none = "gpu-1-mig-1g10gb-0", ""
	for _, row := range []struct {
		name string
		does func(l *testNode, look func())
		want string
	}{
		{"nothing", func(*testNode, func()) {}, still},
		{"a claim for the whole GPU, whose MIG mode is off", func(l *testNode, _ func()) {
			s := sharing.State("GPU-1", []sharing.Holder{{Plan: sharing.Plan{Assignments: []sharing.Assignment{
				{Device: "gpu-1", GPU: "GPU-1"}}}}}, l.Inventory())
			if s.MIG != gpu.MIGOff {
				l.Fatalf("got MIG mode %v", s.MIG)
			}
			if err := l.Hardware(hardware{}).Set(l.Context(), "GPU-1", s); err != nil {
				l.Fatal(err)
			}
		}, still},
		{"the mode is switched on, and off again", func(l *testNode, look func()) {
			l.devices[1].MIG.Enabled = true
			look()
			l.devices[1].MIG.Enabled = false
		}, none},
		{"a reset", func(l *testNode, look func()) {
			l.devices[1].Lost, l.devices[1].Gone = true, true
			look()
			l.devices[1].Lost, l.devices[1].Gone = false, false
		}, none},
		{"a reset, for which the GPU is not listed for a while", func(l *testNode, look func()) {
			all := l.devices
			l.devices = all[:1]
			look()
			look()
			l.devices = all
		}, none},
		{"a GPU that does not answer for a while", func(l *testNode, look func()) {
			l.devices[1].Lost = true
			look()
			l.devices[1].Lost = false
		}, still},
	} {
		for _, why := range []error{gpu.ErrMIGModeFixed, gpu.ErrBusy} {
			t.Run(row.name+": "+why.Error(), func(t *testing.T) {
				l := newTestNode(t)
				for i := range l.devices {
					l.devices[i].MIG = gpu.MIG{Capable: true, Switchable: true,
						Profiles: []gpu.Profile{{Name: "1g.10gb", Size: 1, Starts: []int{0}}}}
				}
				look := func() {
					t.Helper()
					if err := l.look(); err != nil {
						t.Fatal(err)
					}
				}
				look()
				failed := l.Hardware(hardware{err: why}).Set(t.Context(), "GPU-1", gpu.DesiredState{MIG: gpu.MIGOn})
				if !errors.Is(failed, why) {
					t.Fatal(failed)
				}
				l.turn(t.Context(), <-l.events)
				look()
				row.does(l, look)
				for len(l.events) > 0 {
					l.turn(t.Context(), <-l.events)
				}
				look()
				var got []string
				for _, d := range l.Inventory() {
					if d.Blocked != "" {
						got = append(got, d.Name)
					}
				}
				if text := strings.Join(got, " "); text != row.want {
					t.Errorf("got %q blocked, want %q", text, row.want)
				}
			})
		}
	}
}
