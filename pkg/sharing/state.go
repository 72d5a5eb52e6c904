// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"reflect"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// State returns the state that the holders of the physical GPU need. It depends on records and inventory only. The
// holders agree, because NewPlan refuses conflicts.
func State(id gpu.UUID, holders []Holder, inv inventory.Inventory) gpu.DesiredState {
	s := gpu.DesiredState{Settings: settings(id, holders)}
	switch {
	case holds(id, holders, func(a Assignment) bool { return a.MakesPartition() && a.Partition.UUID == "" }):
		s.MIG = gpu.MIGOn // not for a partition that exists already
	case inv.Partitionable(id) && holds(id, holders, Assignment.isWhole):
		s.MIG = gpu.MIGOff
	}
	return s
}

// isWhole reports whether containers use the whole GPU, or shares of it.
func (a Assignment) isWhole() bool { return a.Partition == nil && a.VFIO == nil }

// StateWithout returns the state of the physical GPU after the plan is released, for the remaining holders. If none
// needs settings that the plan changed, the compute mode that was found and the default time slice return.
func StateWithout(id gpu.UUID, released Plan, others []Holder) gpu.DesiredState {
	own := []Holder{{Plan: released}}
	var s gpu.DesiredState
	if had := settings(id, own); had != nil {
		var want gpu.Settings
		want.Mode, _ = FoundMode(id, own)
		if needed := settings(id, others); needed != nil {
			want = *needed
		}
		if had.Interval != "" && want.Interval == "" {
			want.Interval = gpu.IntervalDefault
		}
		if want != *had {
			s.Settings = &want
		}
	}
	if holds(id, own, Assignment.MakesPartition) && !holds(id, others, Assignment.MakesPartition) {
		s.MIG = gpu.MIGOffIfUnused
	}
	return s
}

// Alters reports whether a GPU or an MPS daemon changes when the plan begins or ends while the others hold. If none
// does, the release of the last of the others undoes what a crash leaves.
func Alters(plan Plan, others []Holder) bool {
	own := Holder{Plan: plan}
	ids, all := plan.DaemonIDs(), append(slices.Clone(others), own)
	return slices.ContainsFunc(plan.Assignments, Assignment.MakesPartition) ||
		slices.ContainsFunc(plan.Assignments, Assignment.Binds) ||
		slices.ContainsFunc(plan.Assignments, Assignment.MakesVGPU) ||
		!reflect.DeepEqual(Daemons(ids, others), Daemons(ids, all)) ||
		slices.ContainsFunc(plan.GPUs(), func(id gpu.UUID) bool {
			needed := settings(id, []Holder{own})
			before := settings(id, others)
			return needed != nil && (before == nil || *needed != *before)
		})
}

// SetsGPU reports whether the settings of the physical GPU are those of the assignment.
func (a Assignment) SetsGPU() bool { return a.isWhole() && a.ChangesHardware() }

// FoundMode returns the compute mode that holders restore on the physical GPU, and whether any sets it.
func FoundMode(id gpu.UUID, holders []Holder) (mode gpu.ComputeMode, set bool) {
	set = holds(id, holders, func(a Assignment) bool {
		mode = a.FoundMode
		return a.SetsGPU()
	})
	return mode, set
}

// settings returns the settings that a holder of the physical GPU needs; nil: none does.
func settings(id gpu.UUID, holders []Holder) *gpu.Settings {
	var found *gpu.Settings
	holds(id, holders, func(a Assignment) bool {
		if a.SetsGPU() {
			found = &a.Settings
		}
		return found != nil
	})
	return found
}

// holds reports whether a holder has an assignment on the physical GPU that matches.
func holds(id gpu.UUID, holders []Holder, matches func(Assignment) bool) bool {
	return slices.ContainsFunc(holders, func(h Holder) bool {
		return slices.ContainsFunc(h.Plan.Assignments, func(a Assignment) bool {
			return a.GPU == id && !a.AdminAccess && matches(a)
		})
	})
}
