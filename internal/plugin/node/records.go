// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// records are the records of claims before and after a discovery. A device that changes meanwhile is in one of the two.
type records struct {
	before, after []checkpoint.PreparedClaim
	assignments   []sharing.Assignment // of all of them
	bootID        string               // of the current boot of the machine
	// incomplete is set if some records cannot be read: they may hold any device.
	incomplete error
}

func newRecords(bootID string, before, after []checkpoint.PreparedClaim, incomplete error) records {
	r := records{before: before, after: after, bootID: bootID, incomplete: incomplete}
	for _, rec := range slices.Concat(before, after) {
		r.assignments = append(r.assignments, rec.Plan.Assignments...)
	}
	return r
}

// unreadable is a placeholder for the claims of records that cannot be read.
var unreadable = sharing.Claim{Namespace: "unknown", Name: "unreadable-record"}

func (r records) any(match func(sharing.Assignment) bool) bool {
	return r.incomplete != nil || slices.ContainsFunc(r.assignments, match)
}

// touches reports whether a claim holds the GPU or a partition of it.
func (r records) touches(device string) bool {
	return r.any(func(a sharing.Assignment) bool { return gpu.ParentName(a.Device) == device })
}

// uses reports whether a claim that has not ended holds the GPU or a partition of it.
func (r records) uses(device string) bool {
	return r.incomplete != nil || slices.ContainsFunc(slices.Concat(r.before, r.after),
		func(rec checkpoint.PreparedClaim) bool { return rec.Phase != checkpoint.Releasing && on(rec, device) })
}

// ended reports whether a claim that has ended still has a record on the GPU.
func (r records) ended(device string) bool {
	return slices.ContainsFunc(r.after,
		func(rec checkpoint.PreparedClaim) bool { return rec.Phase == checkpoint.Releasing && on(rec, device) })
}

// on reports whether the record has the GPU or a partition of it.
func on(rec checkpoint.PreparedClaim, device string) bool {
	return slices.ContainsFunc(rec.Plan.Assignments, func(a sharing.Assignment) bool {
		return gpu.ParentName(a.Device) == device
	})
}

// holds reports whether a claim has exactly this device.
func (r records) holds(device string) bool {
	return slices.ContainsFunc(r.assignments, func(a sharing.Assignment) bool { return a.Device == device })
}

// inVM reports whether a claim of a virtual machine has the GPU or a vGPU of it.
func (r records) inVM(device string) bool {
	return slices.ContainsFunc(r.assignments, func(a sharing.Assignment) bool {
		return a.VFIO != nil && gpu.ParentName(a.Device) == device
	})
}

// own reports whether the driver has created the partition at the placement, or is about to.
func (r records) own(at gpu.Placement) bool {
	return r.any(func(a sharing.Assignment) bool { return a.MakesPartition() && a.Partition.Placement == at })
}

// claimsOn returns the claims that hold the GPU or a partition of it, without those with admin access.
func (r records) claimsOn(device string) []sharing.Claim {
	var found []sharing.Claim
	for _, rec := range r.after {
		holds := func(a sharing.Assignment) bool { return !a.AdminAccess && gpu.ParentName(a.Device) == device }
		if slices.ContainsFunc(rec.Plan.Assignments, holds) {
			found = append(found, rec.Claim)
		}
	}
	if r.incomplete != nil {
		found = append(found, unreadable)
	}
	return found
}

// partitioned returns how the GPU was offered, if a claim has a partition of it.
func (r records) partitioned(device string) (how gpu.Partitions, ok bool) {
	for _, a := range r.assignments {
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

// use returns how claims have the GPU. While some records cannot be read, it counts as held.
func (r records) use(device string) inventory.Use {
	how, parted := r.partitioned(device)
	switch {
	case parted && how == gpu.PartitionsDynamic:
		return inventory.UsedInParts
	case r.any(func(a sharing.Assignment) bool { return !a.AdminAccess && gpu.ParentName(a.Device) == device }):
		return inventory.UsedWhole
	}
	return inventory.Unused
}

// removedPartition is a partition of a prepared claim that no longer exists.
type removedPartition struct {
	claim     sharing.Claim
	device    string
	partition sharing.AssignedPartition
}

// removed returns the removed partitions of claims that were prepared before and after the discovery, in the current
// boot: after a boot, partitions are created again. It skips GPUs that are lost.
func (r records) removed(gpus inventory.Inventory) []removedPartition {
	var found []removedPartition
	for _, rec := range r.before {
		same := func(now checkpoint.PreparedClaim) bool {
			return now.Claim.UID == rec.Claim.UID && now.Phase == checkpoint.Prepared
		}
		if rec.Phase != checkpoint.Prepared || rec.BootID != r.bootID || !slices.ContainsFunc(r.after, same) {
			continue
		}
		for _, a := range rec.Plan.Assignments {
			parent, ok := gpus.Find(gpu.ParentName(a.Device))
			if !ok || parent.Lost || parent.UUID != a.GPU || a.Partition == nil || a.AdminAccess {
				continue
			}
			if !slices.ContainsFunc(parent.MIG.Instances,
				func(p gpu.Partition) bool { return p.UUID == a.Partition.UUID }) {
				found = append(found, removedPartition{rec.Claim, a.Device, *a.Partition})
			}
		}
	}
	return found
}
