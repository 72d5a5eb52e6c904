// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Divide takes GPUs and gives what claims can get of them: the GPUs, in their order, then the partitions that Use.Partitions of each
// allows. PartitionsAuto counts as none. Small profiles come first, so that a claim that names no profile takes no large one, and within
// a profile the last GPU: whole GPUs are taken from the front and partitions from the back. Same devices, same order.
//
// own says whether the driver has made the partition that exists at a placement. One that it has not made keeps its place, and those
// that overlap it are Blocked. A GPU is left out while it cannot be used as a whole. What is Blocked about it is
// its MIG mode: that concerns its partitions while the mode is off, and the GPU itself while it is on.
func (inv Inventory) Divide(own func(gpu.Placement) bool) Inventory {
	var all, partitions Inventory
	for _, d := range inv {
		if !wholeUsable(d, foreign(d, own)) {
			continue
		}
		if !d.MIG.Enabled {
			d.Blocked = "" // it is only about partitions
		}
		all = append(all, d)
	}
	for _, d := range slices.Backward(inv) {
		switch d.Use.Partitions {
		case gpu.PartitionsDynamic:
			partitions = append(partitions, possible(d, foreign(d, own))...)
		case gpu.PartitionsStatic:
			partitions = append(partitions, made(d)...)
		}
	}
	slices.SortStableFunc(partitions, func(a, b gpu.Device) int {
		return cmp.Or(
			cmp.Compare(a.Partition.Size, b.Partition.Size),
			cmp.Compare(a.Partition.Slices, b.Partition.Slices),
			cmp.Compare(a.Partition.Profile, b.Partition.Profile),
		)
	})
	return append(all, partitions...)
}

// Untouched is what a node with these GPUs offers before anybody has done anything: without a node configuration and without claims.
func Untouched(gpus []gpu.Device) Inventory {
	nobody := func(gpu.Placement) bool { return false }
	inv := New(gpus)
	for i, d := range inv {
		inv[i].Use.Partitions = Partitioning(d, gpu.PartitionsAuto, gpu.PartitionsAuto, nobody)
	}
	return inv.Divide(nobody)
}

// foreign are the partitions of the GPU that somebody else has made.
func foreign(d gpu.Device, own func(gpu.Placement) bool) []gpu.Partition {
	return slices.DeleteFunc(slices.Clone(d.MIG.Instances), func(p gpu.Partition) bool { return own(p.Placement) })
}

// wholeUsable says whether claims can have the GPU as a whole: not in MIG mode, or the driver may end that.
func wholeUsable(d gpu.Device, foreign []gpu.Partition) bool {
	return !d.MIG.Enabled || d.MIG.Switchable && d.Use.Partitions == gpu.PartitionsDynamic && len(foreign) == 0
}

// possible are all partitions that the GPU can have, each at all its places, in the order of their profiles and of starts.
func possible(d gpu.Device, foreign []gpu.Partition) []gpu.Device {
	var all []gpu.Device
	for _, p := range d.MIG.Profiles {
		for _, start := range starts(p, d.MIG.Profiles) {
			at := gpu.Placement{Parent: d.UUID, Profile: p.Name, Start: start, Size: p.Size}
			part := partition(d, gpu.Partition{Placement: at, Slices: p.Slices, Engines: p.Engines, Memory: p.Memory})
			part.UUID = gpu.UUID(part.Name) // it has none while it does not exist
			part.Blocked = inTheWay(at, foreign)
			if !d.MIG.Enabled {
				part.Blocked = cmp.Or(d.Blocked, part.Blocked)
			}
			all = append(all, alone(part))
		}
	}
	return all
}

// inTheWay says who keeps a partition from being made at the place; empty: nobody.
func inTheWay(at gpu.Placement, foreign []gpu.Partition) string {
	for _, p := range foreign {
		if p.Overlaps(at) {
			return fmt.Sprintf("partition %s at %d (%s) is not the driver's", p.Profile, p.Start, p.UUID)
		}
	}
	return ""
}

// made are the partitions that somebody has made of the GPU.
func made(d gpu.Device) []gpu.Device {
	var all []gpu.Device
	for _, p := range d.MIG.Instances {
		if p.UUID == "" {
			continue // nothing can run in it yet
		}
		p.Static = true
		part := partition(d, p)
		part.UUID = p.UUID
		if sharesItsInstance(p.Profile) {
			part.Name += fmt.Sprintf("-%d", p.ComputeInstance)
		}
		all = append(all, alone(part))
	}
	return all
}

// sharesItsInstance says whether a partition of that profile is a compute instance smaller than its GPU instance ("1c.3g.40gb"): there may
// be several of them at one placement.
func sharesItsInstance(profile string) bool {
	kind, _, _ := strings.Cut(profile, ".")
	return strings.HasSuffix(kind, "c")
}

// partition is the GPU as far as one of its partitions goes: the memory and the multiprocessors of the partition, their share of the
// GPU's peak compute, and of its bandwidth as many parts as it has of the memory slices. It is given to one claim at a time. What
// Blocked says of the GPU is about how it is partitioned, so it is not taken over.
func partition(d gpu.Device, p gpu.Partition) gpu.Device {
	part := d
	part.Name, part.Type = gpu.PartitionName(d.Name, p.Placement), gpu.TypeMIG
	part.Memory = p.Memory
	part.Product.Multiprocessors = p.Engines.Multiprocessors
	part.Product.PeakCompute = share(d.Product.PeakCompute, p.Engines.Multiprocessors, d.Product.Multiprocessors)
	part.Product.MemoryBandwidth = share(d.Product.MemoryBandwidth, p.Size, memorySlices(d.MIG))
	part.MIG = gpu.MIG{Capable: d.MIG.Capable}
	part.Use = gpu.Use{Sharing: gpu.Exclusive, Isolation: gpu.IsolationNone, Partitions: d.Use.Partitions}
	part.Partition, part.Blocked = &p, ""
	return part
}

// alone gives a partition topology domains of its own: it has no part in the NVLinks of its GPU.
func alone(d gpu.Device) gpu.Device {
	d.Topology = gpu.Topology{NVLinkDomain: string(d.UUID), FabricDomain: string(d.UUID)}
	return d
}

// share is so many parts of an amount, rounded down; 0 where the number of parts is not known.
func share(amount, parts, of int) int {
	if of == 0 {
		return 0
	}
	return amount * parts / of
}

// memorySlices is into how many parts the memory of the GPU is divided.
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
