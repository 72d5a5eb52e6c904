// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/apirequests"
	"github.com/gpudra/gpu-dra-driver/test/chaos/check"
	"github.com/gpudra/gpu-dra-driver/test/fleet"
)

// publishing is what it takes until the nodes of a fleet are published.
type publishing struct {
	Fleet   string
	Size    fleet.Size
	Seconds float64 // until all is stored
	Known   float64 // from then until the scheduler has bound a pod
	Nodes   int     // writes of node objects
	Leases  int
	Slices  int
	Mean    int // bytes of a slice, as it is stored
	Max     int
	Memory  map[string]float64 // MiB of each program, afterwards
	Peak    map[string]float64 // MiB, the most
	Restart *restart           `json:",omitempty"`
}

// restart is what it takes to start the plugins of all nodes at once, when their slices are stored already.
type restart struct {
	Nodes    int
	Seconds  float64 // until the last answer
	Requests int     // that were answered, watches included
	Writes   int     // that have stored something
	DryRuns  int
	P50, P99 float64 // ms of a small request meanwhile
	Idle50   float64 // and before
	Idle99   float64
	Peak     float64 // MiB of the API server, the most until then
}

// sizes returns the mean and the largest number of bytes of a slice as the API server stores it.
func sizes(w check.World) (mean, largest int) {
	sum := 0
	for i := range w.Slices {
		n := w.Slices[i].Size()
		sum += n
		largest = max(largest, n)
	}
	return sum / max(1, len(w.Slices)), largest
}

// measure publishes the fleet, eight H100 for each node. The scheduler and the driver's controller run meanwhile, as in
// a cluster.
func (size fleetSize) measure(ctx context.Context, p programs) (r publishing, err error) {
	l, err := open(ctx, p)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	before, err := apirequests.Read(ctx, l.client.Discovery().RESTClient())
	if err != nil {
		return r, err
	}
	begin := time.Now()
	f, err := fleet.Start(ctx, l.plane.REST(), h100(size.nodes, size.partitions))
	if err != nil {
		return r, err
	}
	r = publishing{Fleet: size.name(), Size: f.Size(), Seconds: time.Since(begin).Seconds()}
	say("%s: %+v after %.0f s", r.Fleet, r.Size, r.Seconds)
	after, err := apirequests.Read(ctx, l.client.Discovery().RESTClient())
	if err != nil {
		return r, err
	}
	did := after.Since(before)
	r.Nodes, r.Leases = did.Writes("nodes", "nodes/status"), did.Writes("leases")
	r.Slices = did.Writes("resourceslices")
	_, took, err := l.place(ctx, documented[0], 1, nil)
	if err != nil {
		return r, err
	}
	r.Known = took.Seconds()
	w, err := l.read(ctx)
	if err != nil {
		return r, err
	}
	r.Mean, r.Max = sizes(w)
	if r.Memory, r.Peak, err = l.memory(); err != nil {
		return r, err
	}
	say("%s: %+v", r.Fleet, r)
	if size.restarts {
		if r.Restart, err = l.restart(ctx, f); err != nil {
			return r, err
		}
		say("%s: restart: %+v", r.Fleet, *r.Restart)
	}
	return r, nil
}
