// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// ledger is what records say of devices, as they were before the machine was looked at and as they were after: what changes meanwhile
// is in one of the two.
type ledger struct {
	before, after []checkpoint.Record
	assignments   []sharing.Assignment // of all of them
	bootID        string               // of this run of the machine
	// incomplete is set when some of the records cannot be read: they may be about any device.
	incomplete error
}

func newLedger(bootID string, before, after []checkpoint.Record, incomplete error) ledger {
	l := ledger{before: before, after: after, bootID: bootID, incomplete: incomplete}
	for _, records := range [][]checkpoint.Record{before, after} {
		for _, rec := range records {
			l.assignments = append(l.assignments, rec.Plan.Assignments...)
		}
	}
	return l
}

// unreadable stands for the claims of records that cannot be read: any of them may hold any device.
var unreadable = sharing.Claim{Namespace: "unknown", Name: "unreadable-record"}

// touched says whether a claim is about the GPU or a partition of it.
func (l ledger) touched(device string) bool {
	return l.incomplete != nil || slices.ContainsFunc(l.assignments, func(a sharing.Assignment) bool { return gpu.ParentName(a.Device) == device })
}

// holders says which claims hold the GPU or a partition of it; one with admin access does not.
func (l ledger) holders(device string) []sharing.Claim {
	var found []sharing.Claim
	for _, rec := range l.after {
		holds := func(a sharing.Assignment) bool { return !a.AdminAccess && gpu.ParentName(a.Device) == device }
		if slices.ContainsFunc(rec.Plan.Assignments, holds) {
			found = append(found, rec.Claim)
		}
	}
	if l.incomplete != nil {
		found = append(found, unreadable)
	}
	return found
}

// held says whether a claim has just this device.
func (l ledger) held(device string) bool {
	return slices.ContainsFunc(l.assignments, func(a sharing.Assignment) bool { return a.Device == device })
}

// own says whether the driver has made the partition that is at the placement, or is about to.
func (l ledger) own(at gpu.Placement) bool {
	return l.incomplete != nil || slices.ContainsFunc(l.assignments, func(a sharing.Assignment) bool { return a.MakesPartition() && a.Partition.Placement == at })
}

// partitioned says how a GPU was offered, if a claim has a partition of it.
func (l ledger) partitioned(device string) (how gpu.Partitions, ok bool) {
	for _, a := range l.assignments {
		switch {
		case a.Partition == nil || gpu.ParentName(a.Device) != device:
		case a.Partition.Static:
			return gpu.PartitionsStatic, true
		default:
			return gpu.PartitionsDynamic, true
		}
	}
	return 0, false
}

// missing is a partition that is not there any more, under a claim that was prepared with it.
type missing struct {
	claim     sharing.Claim
	device    string
	partition sharing.Partition
}

// missing finds them among partitions that were prepared all the time in which the machine was looked at, in this run of it: those of the
// one before are made anew. GPUs that do not answer say nothing of their partitions.
func (l ledger) missing(gpus inventory.Inventory) []missing {
	var found []missing
	for _, rec := range l.before {
		same := func(now checkpoint.Record) bool {
			return now.Claim.UID == rec.Claim.UID && now.Phase == checkpoint.Prepared
		}
		if rec.Phase != checkpoint.Prepared || rec.BootID != l.bootID || !slices.ContainsFunc(l.after, same) {
			continue
		}
		for _, a := range rec.Plan.Assignments {
			parent, ok := gpus.Find(gpu.ParentName(a.Device))
			if !ok || parent.Lost || parent.UUID != a.GPU || a.Partition == nil || a.AdminAccess {
				continue
			}
			if !slices.ContainsFunc(parent.MIG.Instances, func(p gpu.Partition) bool { return p.UUID == a.Partition.UUID }) {
				found = append(found, missing{rec.Claim, a.Device, *a.Partition})
			}
		}
	}
	return found
}
