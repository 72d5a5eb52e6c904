// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrBusy means that the GPU cannot be partitioned, or made whole, while somebody uses it. The message names who.
	ErrBusy = errors.New("the GPU is in use")
	// ErrForeign means that a partition which the driver has not made is in the way. The message names it.
	ErrForeign = errors.New("a partition that is not the driver's is in the way")
	// ErrRemoved means that somebody else has removed a partition of the driver's. The message names it.
	ErrRemoved = errors.New("somebody has removed the partition")
	// ErrFixed means that the MIG mode of the GPU cannot be changed from here. The message says who can.
	ErrFixed = errors.New("the MIG mode cannot be changed from here")
)

// Placement is where a partition sits. It identifies the partition before, during and after its life, so it can always be undone.
type Placement struct {
	Parent  UUID   `json:"parent"`  // the physical GPU
	Profile string `json:"profile"` // as NVIDIA writes it: "1g.10gb+me"
	Start   int    `json:"start"`   // its first memory slice
	Size    int    `json:"size"`    // how many memory slices it occupies
}

func (p Placement) String() string {
	return fmt.Sprintf("%s at %d of %s", p.Profile, p.Start, p.Parent)
}

// Overlaps says whether both cannot be there at the same time because of where they sit.
func (p Placement) Overlaps(other Placement) bool {
	return p.Parent == other.Parent && p.Start < other.Start+other.Size && other.Start < p.Start+p.Size
}

// MIG is how a GPU can be partitioned (Multi-Instance GPU), and how it is. The zero value: not at all.
type MIG struct {
	Capable    bool
	Enabled    bool        // partitions can exist; the whole GPU cannot be used meanwhile
	Switchable bool        // Enabled can change without a reset of the GPU
	Profiles   []Profile   `json:",omitempty"` // what partitions it can have, in NVML's order
	Instances  []Partition `json:",omitempty"` // those that exist now, by where they start
}

// Profile is a kind of partition: what each one has, and where it can sit.
type Profile struct {
	Name    string // as NVIDIA writes it: "1g.10gb+me"
	Slices  int    // the G of "Gg.…gb"
	Memory  uint64 // bytes
	Engines Engines
	Size    int   // memory slices
	Starts  []int // the first memory slices that it can have, rising
}

// Engines are what a partition has to itself beside memory.
type Engines struct{ Multiprocessors, Copy, Decoders, Encoders, JPEG, OFA int }

// Partition is a part of a GPU with hardware walls, or the place for one.
type Partition struct {
	Placement
	Slices  int // the G of its profile
	Engines Engines
	Memory  uint64 // bytes
	UUID    UUID   // "MIG-…"; empty for a place where there is none
	// GPUInstance and ComputeInstance are the numbers under which NVML has it; they mean nothing where there is none.
	GPUInstance, ComputeInstance int
	// Static means that somebody else has made it, and that the driver neither makes nor removes it.
	Static bool
}

// Partitions says which partitions of a GPU claims can get.
type Partitions int

const (
	// PartitionsAuto is PartitionsStatic for a GPU that somebody else has partitioned, PartitionsDynamic for one that can be without
	// a reset, and PartitionsNone for all others.
	PartitionsAuto Partitions = iota
	// PartitionsNone gives the whole GPU only.
	PartitionsNone
	// PartitionsStatic gives those that somebody else has made.
	PartitionsStatic
	// PartitionsDynamic gives every partition that is possible, and makes it when a claim has it.
	PartitionsDynamic
)

var partitionings = []string{"auto", "none", "static", "dynamic"}

func (p Partitions) String() string { return partitionings[p] }

// MarshalText writes the name.
func (p Partitions) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the name. The error lists the names.
func (p *Partitions) UnmarshalText(text []byte) error {
	n, err := indexOf(partitionings, string(text))
	*p = Partitions(n)
	return err
}

// partitionMark stands between the name of a GPU and the rest of the name of one of its partitions.
const partitionMark = "-mig-"

// profileNames turns the name of a profile into one that a DNS label can hold: "+me" and "-me" both exist.
var profileNames = strings.NewReplacer("+me.all", "-meall", "-me", "-nome", "+", "-", ".", "")

// PartitionName is the name under which a partition of the named GPU is published: "gpu-3b-00-0-mig-1g10gb-4". It is a DNS label.
func PartitionName(parent string, at Placement) string {
	return fmt.Sprintf("%s%s%s-%d", parent, partitionMark, profileNames.Replace(at.Profile), at.Start)
}

// PartitionProfile is the profile of a partition as the name of the device has it: "1g10gb" of "gpu-3b-00-0-mig-1g10gb-4". Partitions
// that differ in their profile differ in it. Empty: the device is no partition.
func PartitionProfile(device string) string {
	_, profile, _ := strings.Cut(device, partitionMark)
	// What follows is where it is: no profile ends in a number.
	return strings.TrimRight(profile, "-0123456789")
}

// ParentName is the name of the physical GPU that the device of that name is, or is a partition of.
func ParentName(device string) string {
	parent, _, _ := strings.Cut(device, partitionMark)
	return parent
}

// IsPartition says whether a device of that name is a partition.
func IsPartition(device string) bool { return strings.Contains(device, partitionMark) }
