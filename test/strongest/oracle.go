// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

const driver = "gpu.nvidia.com"

// place is a GPU: its pool, which is its node, and its name.
type place struct{ node, gpu string }

// oracle tracks the free GPUs. It reads only slices and allocations.
type oracle struct {
	peak map[place]int64 // of every GPU that is published
	free map[place]bool
}

// newOracle returns an oracle of the published GPUs, all free.
func newOracle(published []resourceapi.ResourceSlice) *oracle {
	o := &oracle{peak: map[place]int64{}, free: map[place]bool{}}
	for _, s := range published {
		for _, d := range s.Spec.Devices {
			if s.Spec.Driver == driver && ptr.Deref(d.Attributes["type"].StringValue, "") == "gpu" {
				at := place{s.Spec.Pool.Name, d.Name}
				o.peak[at] = ptr.Deref(d.Attributes["peakCompute"].IntValue, 0)
				o.free[at] = true
			}
		}
	}
	return o
}

// take marks the GPUs of an allocated claim as used and returns them.
func (o *oracle) take(claim *resourceapi.ResourceClaim) (took []place) {
	if claim.Status.Allocation == nil {
		return nil
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		at := place{r.Pool, r.Device}
		took = append(took, at)
		delete(o.free, at)
	}
	return took
}

// strongest returns the peak of the strongest free GPU and the nodes that have one.
func (o *oracle) strongest() (peak int64, nodes []string) {
	for at := range o.free {
		peak = max(peak, o.peak[at])
	}
	for at := range o.free {
		if o.peak[at] == peak {
			nodes = append(nodes, at.node)
		}
	}
	slices.Sort(nodes)
	return peak, slices.Compact(nodes)
}

// tiers returns the number of different peaks in the cluster.
func (o *oracle) tiers() int {
	all := map[int64]bool{}
	for _, peak := range o.peak {
		all[peak] = true
	}
	return len(all)
}

// inOrder sorts claims by the time of their last write. That is their allocation, because a fleet does not write them
// afterwards.
func inOrder(claims []resourceapi.ResourceClaim) []resourceapi.ResourceClaim {
	version := func(c resourceapi.ResourceClaim) uint64 {
		n, _ := strconv.ParseUint(c.ResourceVersion, 10, 64)
		return n
	}
	return slices.SortedFunc(slices.Values(claims), func(a, b resourceapi.ResourceClaim) int {
		switch x, y := version(a), version(b); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
}
