// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/simulator/fleettest"
)

// What tests build clusters with.
var (
	claim         = fleettest.Claim
	exclusive     = fleettest.Exclusive
	fleet         = fleettest.Fleet
	gpus          = fleettest.GPUs
	hold          = fleettest.Hold
	holdOn        = fleettest.HoldOn
	hostMemory    = fleettest.HostMemory
	judge         = fleettest.Judge
	large         = fleettest.Large
	now           = fleettest.Now
	podOn         = fleettest.PodOn
	randomClaim   = fleettest.RandomClaim
	run           = fleettest.RunPod
	setTaint      = fleettest.SetTaint
	shareOf       = fleettest.ShareOf
	twoIsolations = fleettest.TwoIsolations
	wholeGPUs     = fleettest.WholeGPUs
)

const driver = clustertest.Driver
