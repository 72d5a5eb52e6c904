// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
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
	l.turn(t.Context(), modeSet{"GPU-1", gpu.ErrBusy})
	busy := "gpu-1-mig-1g10gb-0: " + gpu.ErrBusy.Error()
	discovered("a change has failed", busy+"; "+first)
	users["GPU-1"] = "exporter"
	l.turn(t.Context(), modeSet{"GPU-1", nil})
	discovered("the failure is forgotten, and a program is there", busy+"; "+first)
}
