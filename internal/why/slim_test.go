// SPDX-License-Identifier: Apache-2.0

package why

import (
	"math/rand/v2"
	"testing"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/simulator/fleettest"
)

// Answers about slim slices are those about the slices.
func TestSlimSlices(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 0))
		s := randomFleet(t, r)
		fill(t, r, s)
		c := claim(t, "c", randomClaim(r))
		s.Claims, s.Pods = append(s.Claims, c), append(s.Pods, pod("p", c))
		want, err := Pod(t.Context(), s, "ns", "p")
		if err != nil {
			t.Fatal(err)
		}
		fleettest.Shorten(s, schedule.AttributesFor(s))
		got, err := Pod(t.Context(), s, "ns", "p")
		if err != nil {
			t.Fatal(err)
		}
		if a, b := text(t, got), text(t, want); a != b {
			t.Errorf("seed %d: got\n%s\nwant\n%s", seed, a, b)
		}
	}
}
