// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// AssignedPartition is an assigned partition of a GPU.
type AssignedPartition struct {
	gpu.Placement
	UUID   gpu.UUID `json:"uuid,omitempty"`   // empty: not created yet
	Static bool     `json:"static,omitempty"` // created by an administrator
	// Begun means that the driver may have created it for the claim, even if its UUID is not known yet. Before that, a
	// partition at the placement belongs to somebody else.
	Begun bool `json:"begun,omitempty"`
}

// MayExist reports whether the driver may have created the partition for the claim.
func (p AssignedPartition) MayExist() bool { return p.Begun || p.UUID != "" }

// excludes reports whether both cannot exist at once. Static ones always can: compute instances of one GPU instance
// have the same placement.
func (p AssignedPartition) excludes(other AssignedPartition) bool {
	return p.Overlaps(other.Placement) && !(p.Static && other.Static)
}

// MakesPartition reports whether the driver creates the partition for the claim, and removes it afterwards.
func (a Assignment) MakesPartition() bool { return a.Partition != nil && !a.Partition.Static }

// Partitions returns the partitions that the plan makes, by physical GPU, in the order of the claim.
func (p Plan) Partitions() map[gpu.UUID][]AssignedPartition {
	out := map[gpu.UUID][]AssignedPartition{}
	for _, a := range p.Assignments {
		if a.MakesPartition() {
			out[a.GPU] = append(out[a.GPU], *a.Partition)
		}
	}
	return out
}

// Unbegun returns the plan as it was before any of its partitions was created.
func (p Plan) Unbegun() Plan {
	return p.withPartitions(func(part AssignedPartition) AssignedPartition {
		return AssignedPartition{Placement: part.Placement}
	})
}

// Begun returns the plan with its partitions marked as begun.
func (p Plan) Begun() Plan {
	return p.withPartitions(func(part AssignedPartition) AssignedPartition {
		part.Begun = true
		return part
	})
}

// Made returns the plan with the UUIDs of its partitions.
func (p Plan) Made(made map[gpu.Placement]gpu.UUID) Plan {
	return p.withPartitions(func(part AssignedPartition) AssignedPartition {
		part.UUID = made[part.Placement]
		return part
	})
}

// withPartitions returns a copy of the plan in which other replaces each partition that the plan makes.
func (p Plan) withPartitions(other func(AssignedPartition) AssignedPartition) Plan {
	p.Assignments = slices.Clone(p.Assignments)
	for i, a := range p.Assignments {
		if !a.MakesPartition() {
			continue
		}
		part := other(*a.Partition)
		p.Assignments[i].Partition = &part
		if a.MPS != nil {
			client := *a.MPS
			client.GPUs = []gpu.UUID{part.UUID}
			p.Assignments[i].MPS = &client
		}
	}
	return p
}
