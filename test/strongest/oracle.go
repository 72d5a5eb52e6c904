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

// oracle knows which GPUs are free, from what is published and what is allocated and from nothing else.
type oracle struct {
	peak map[place]int64 // of every GPU that is published
	free map[place]bool
}

// newOracle reads what is published. All of it is free.
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

// take is told of an allocation.
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

// strongest is the peak of the strongest GPU that is free, and the nodes that have such.
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

// tiers is how many different peaks the cluster has.
func (o *oracle) tiers() int {
	all := map[int64]bool{}
	for _, peak := range o.peak {
		all[peak] = true
	}
	return len(all)
}

// inOrder sorts claims by when they were last written: that is when they were allocated, since nothing of a fleet writes them afterwards.
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
