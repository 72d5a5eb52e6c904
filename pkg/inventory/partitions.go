// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// WithPartitions turns GPUs into the devices that claims can get: the GPUs, in their order, then the partitions that
// their Use.Partitions allows, then the GPUs for virtual machines, then vGPUs. PartitionsAuto counts as none. Small
// profiles come first, so that a claim without a profile takes no large one. Within a profile the last GPU comes first:
// whole GPUs are taken from the front and partitions from the back. The same devices always have the same order.
//
// own reports whether the driver has created the partition at a placement. Possible partitions that overlap a foreign
// one are Blocked. A GPU is left out while it cannot be used as a whole, or somebody else has made vGPUs on it. If the
// MIG mode of a GPU cannot be changed, its partitions are Blocked while the mode is off, and the whole GPU while it is
// on.
func (inv Inventory) WithPartitions(own func(gpu.Placement) bool) Inventory {
	var all, partitions, passthrough, virtual Inventory
	for _, d := range inv {
		virtual = append(virtual, vgpus(d)...)
		if len(d.VGPUs.Foreign()) > 0 {
			continue
		}
		d.VGPUs = nil // they change with every claim for one
		if !wholeUsable(d, Foreign(d, own)) {
			continue
		}
		if !d.MIG.Enabled {
			d.Blocked = "" // it only concerns partitions
		}
		if Passable(d) {
			passthrough = slices.Insert(passthrough, 0, forVM(d))
		}
		if d.VFIO == nil || !d.VFIO.External() {
			all = append(all, d)
		}
	}
	for _, d := range slices.Backward(inv) {
		if len(d.VGPUs.Foreign()) > 0 {
			continue
		}
		d.VGPUs = nil
		switch d.Use.Partitions {
		case gpu.PartitionsDynamic:
			partitions = append(partitions, possible(d, Foreign(d, own))...)
		case gpu.PartitionsStatic:
			partitions = append(partitions, existing(d)...)
		}
	}
	slices.SortStableFunc(partitions, func(a, b gpu.Device) int {
		return cmp.Or(
			cmp.Compare(a.Partition.Size, b.Partition.Size),
			cmp.Compare(a.Partition.Slices, b.Partition.Slices),
			cmp.Compare(a.Partition.Profile, b.Partition.Profile),
		)
	})
	return slices.Concat(all, partitions, passthrough, virtual)
}

// Passable reports whether virtual machines can have the GPU, unless partitions keep it from being used as a whole. One
// that is only for shares is not for them.
func Passable(d gpu.Device) bool {
	return d.VFIO != nil && d.VFIO.Refusal == "" && !d.Use.NoPassthrough && !d.Use.SharedOnly
}

// forVM returns the device of a GPU for virtual machines. It is exclusive to one claim. A GPU whose MIG mode cannot be
// disabled is Blocked, too.
func forVM(d gpu.Device) gpu.Device {
	d.Name, d.Type, d.Blocked = gpu.VFIOName(d.Name), gpu.TypeVFIO, cmp.Or(d.VFIO.Blocked, d.Blocked)
	d.Use = gpu.SharingMode{Sharing: gpu.Exclusive, Isolation: gpu.IsolationNone, Partitions: d.Use.Partitions}
	return withOwnDomains(d)
}

// Defaults returns the inventory of a node with these GPUs without a node configuration and without claims.
func Defaults(gpus []gpu.Device) Inventory {
	return Unclaimed(gpus, func(gpu.Device) gpu.SharingMode { return gpu.SharingMode{} })
}

// Unclaimed returns what a node with these GPUs publishes when no claim has had any of them. configured is the
// administrator's choice for a GPU.
func Unclaimed(gpus []gpu.Device, configured func(gpu.Device) gpu.SharingMode) Inventory {
	inv := Possible(gpus, configured)
	return inv.Only(inv.OfferAtFirst())
}

// Possible returns the same with the possible partitions of all GPUs.
func Possible(gpus []gpu.Device, configured func(gpu.Device) gpu.SharingMode) Inventory {
	nobody := func(gpu.Placement) bool { return false }
	inv := New(gpus)
	for i, d := range inv {
		inv[i].Use = Mode(d, configured(d), gpu.PartitionsAuto, nobody)
	}
	return inv.WithPartitions(nobody)
}

// Mode returns the mode of a GPU: what it can enforce of the administrator's choice, and which partitions are offered.
// The others are as for Partitioning.
func Mode(d gpu.Device, configured gpu.SharingMode, before gpu.Partitions,
	own func(gpu.Placement) bool) gpu.SharingMode {
	use := configured.EnforceableOn(d)
	onDemand := use.Partitions == gpu.PartitionsOnDemand || use.Partitions == gpu.PartitionsAuto && use.OnDemand
	if use.Partitions == gpu.PartitionsOnDemand {
		use.Partitions = gpu.PartitionsDynamic
	}
	use.Partitions = Partitioning(d, use.Partitions, before, own)
	use.OnDemand = onDemand && use.Partitions == gpu.PartitionsDynamic
	return use
}

// Foreign returns the partitions of the GPU that somebody else has created. own is as for WithPartitions.
func Foreign(d gpu.Device, own func(gpu.Placement) bool) []gpu.Partition {
	return slices.DeleteFunc(slices.Clone(d.MIG.Instances), func(p gpu.Partition) bool { return own(p.Placement) })
}

// wholeUsable reports whether claims can use the whole GPU: it is not in MIG mode, or the driver may disable the mode.
func wholeUsable(d gpu.Device, foreign []gpu.Partition) bool {
	return !d.MIG.Enabled || d.MIG.Switchable && d.Use.Partitions == gpu.PartitionsDynamic && len(foreign) == 0 &&
		!d.MIG.Unlisted
}

// possible returns all partitions that the GPU can have, by profile, each at all its starts in the order of starts.
func possible(d gpu.Device, foreign []gpu.Partition) []gpu.Device {
	var all []gpu.Device
	for _, p := range d.MIG.Profiles {
		for _, start := range starts(p, d.MIG.Profiles) {
			at := gpu.Placement{Parent: d.UUID, Profile: p.Name, Start: start, Size: p.Size}
			part := partition(d, gpu.Partition{Placement: at, Slices: p.Slices, Engines: p.Engines, Memory: p.Memory})
			part.UUID = gpu.UUID(part.Name) // it has no UUID while it does not exist
			if part.Blocked = cmp.Or(blockedBy(at, foreign), d.MIG.Refused[at]); d.MIG.Unlisted {
				part.Blocked = cmp.Or(part.Blocked, "NVML does not tell which partitions exist")
			}
			if !d.MIG.Enabled {
				part.Blocked = cmp.Or(d.Blocked, part.Blocked)
			}
			all = append(all, withOwnDomains(part))
		}
	}
	return all
}

// blockedBy names the foreign partition that overlaps the placement; empty: none.
func blockedBy(at gpu.Placement, foreign []gpu.Partition) string {
	for _, p := range foreign {
		if p.Overlaps(at) {
			return fmt.Sprintf("partition %s at %d (%s) is not the driver's",
				cmp.Or(p.Profile, "of an unknown profile"), p.Start, p.UUID)
		}
	}
	return ""
}

// existing returns the existing partitions of the GPU as static ones.
func existing(d gpu.Device) []gpu.Device {
	var all []gpu.Device
	for _, p := range d.MIG.Instances {
		if p.UUID == "" || p.Profile == "" {
			continue // it has no compute instance yet, or the driver cannot name its profile
		}
		p.Static = true
		part := partition(d, p)
		part.UUID = p.UUID
		if sharesInstance(p.Profile) {
			part.Name += fmt.Sprintf("-%d", p.ComputeInstance)
		}
		all = append(all, withOwnDomains(part))
	}
	return all
}

// sharesInstance reports whether a partition of the profile is a compute instance smaller than its GPU instance
// ("1c.3g.40gb"). Several of them may have the same placement.
func sharesInstance(profile string) bool {
	kind, _, _ := strings.Cut(profile, ".")
	return strings.HasSuffix(kind, "c")
}

// partition returns the device of a partition: with its own memory and multiprocessors, and with peak compute and
// bandwidth in proportion to its multiprocessors and memory slices. It is exclusive to one claim. Blocked is not copied
// from the GPU, where it concerns the MIG mode.
func partition(d gpu.Device, p gpu.Partition) gpu.Device {
	part := d
	part.Name, part.Type = gpu.PartitionName(d.Name, p.Placement), gpu.TypeMIG
	part.Memory = p.Memory
	part.Product.Multiprocessors = p.Engines.Multiprocessors
	part.Product.PeakCompute = share(d.Product.PeakCompute, p.Engines.Multiprocessors, d.Product.Multiprocessors)
	part.Product.MemoryBandwidth = share(d.Product.MemoryBandwidth, p.Size, memorySlices(d.MIG))
	part.MIG = gpu.MIG{Capable: d.MIG.Capable}
	part.Use = gpu.SharingMode{Sharing: gpu.Exclusive, Isolation: gpu.IsolationNone, Partitions: d.Use.Partitions}
	part.Partition, part.Blocked = &p, ""
	return part
}

// withOwnDomains gives a partition, or a GPU for virtual machines, its own topology domains, because it cannot use the
// NVLinks of its GPU.
func withOwnDomains(d gpu.Device) gpu.Device {
	d.Topology = gpu.Topology{NVLinkDomain: string(d.UUID), FabricDomain: string(d.UUID)}
	return d
}

// share returns parts/of of an amount, rounded down; 0 if of is unknown (0).
func share(amount, parts, of int) int {
	if of == 0 {
		return 0
	}
	return amount * parts / of
}

// memorySlices returns the number of memory slices of the GPU.
func memorySlices(m gpu.MIG) int {
	n := 0
	for _, p := range m.Profiles {
		for _, start := range p.Starts {
			n = max(n, start+p.Size)
		}
	}
	for _, p := range m.Instances {
		n = max(n, p.Start+p.Size)
	}
	return n
}

// Partitioning returns which partitions of a GPU are offered. configured is the administrator's choice, before the
// present offer, and own is as for WithPartitions. By default the driver does not partition a GPU that somebody else
// has partitioned, and partitions one that needs no reset for it. A GPU without MIG has PartitionsAuto.
func Partitioning(d gpu.Device, configured, before gpu.Partitions, own func(gpu.Placement) bool) gpu.Partitions {
	possible := d.MIG.Enabled || d.MIG.Switchable
	switch {
	case !d.MIG.Capable:
		return gpu.PartitionsAuto
	case configured == gpu.PartitionsDynamic && !possible:
		return gpu.PartitionsNone
	case configured != gpu.PartitionsAuto:
		return configured
	case len(d.MIG.Instances) > 0 && len(Foreign(d, own)) == len(d.MIG.Instances):
		return gpu.PartitionsStatic
	case before == gpu.PartitionsStatic && d.MIG.Enabled && !d.MIG.Switchable:
		return gpu.PartitionsStatic // the administrator may be about to create the partitions again, after a reboot
	case possible:
		return gpu.PartitionsDynamic
	}
	return gpu.PartitionsNone
}

// Partitionable reports whether the driver creates partitions on the physical GPU for claims.
func (inv Inventory) Partitionable(id gpu.UUID) bool {
	return slices.ContainsFunc(inv, func(d gpu.Device) bool {
		return d.UUID == id && d.Type != gpu.TypeVFIO && d.Use.Partitions == gpu.PartitionsDynamic
	})
}
