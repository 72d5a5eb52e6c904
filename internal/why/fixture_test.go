// SPDX-License-Identifier: Apache-2.0

package why

import (
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/simulator/fleettest"
)

// What tests build clusters with.
var (
	claim         = fleettest.Claim
	exclusive     = fleettest.Exclusive
	fill          = fleettest.Fill
	fleet         = fleettest.Fleet
	gpus          = fleettest.GPUs
	hold          = fleettest.Hold
	holdOn        = fleettest.HoldOn
	judge         = fleettest.Judge
	large         = fleettest.Large
	mount         = fleettest.Mount
	mustHold      = fleettest.MustHold
	randomClaim   = fleettest.RandomClaim
	randomFleet   = fleettest.RandomFleet
	requests      = fleettest.Requests
	run           = fleettest.RunPod
	setTaint      = fleettest.SetTaint
	setUUIDs      = fleettest.SetUUIDs
	since         = fleettest.Since
	twoIsolations = fleettest.TwoIsolations
	wholeGPUs     = fleettest.WholeGPUs
)

const driver = clustertest.Driver

// text is a report for people.
func text(t testing.TB, r *Answer) string {
	t.Helper()
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
