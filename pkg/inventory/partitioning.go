// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Partitioning is how a GPU is offered for which the administrator has said that. A GPU without MIG has nothing to choose. On its own,
// the driver keeps off a GPU that somebody else has partitioned, and partitions one that can be without a reset. own is that of Divide, and before
// how the GPU was offered until now.
func Partitioning(d gpu.Device, said, before gpu.Partitions, own func(gpu.Placement) bool) gpu.Partitions {
	possible := d.MIG.Enabled || d.MIG.Switchable
	foreign := func(p gpu.Partition) bool { return !own(p.Placement) }
	switch {
	case !d.MIG.Capable:
		return gpu.PartitionsAuto
	case said == gpu.PartitionsDynamic && !possible:
		return gpu.PartitionsNone
	case said != gpu.PartitionsAuto:
		return said
	case len(d.MIG.Instances) > 0 && !slices.ContainsFunc(d.MIG.Instances, func(p gpu.Partition) bool { return !foreign(p) }):
		return gpu.PartitionsStatic
	case before == gpu.PartitionsStatic && d.MIG.Enabled && !d.MIG.Switchable:
		return gpu.PartitionsStatic // who has partitioned it may be about to do it again, after a start of the machine
	case possible:
		return gpu.PartitionsDynamic
	}
	return gpu.PartitionsNone
}
