// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrBusy is returned when a GPU or a partition cannot be changed because it is in use. The message names the user.
	ErrBusy = errors.New("the GPU is in use")
	// ErrForeignPartition is returned when a partition that the driver has not created is in the way. The message names
	// it.
	ErrForeignPartition = errors.New("a partition that is not the driver's is in the way")
	// ErrPartitionRemoved is returned when somebody else has removed a partition of the driver. The message names it.
	ErrPartitionRemoved = errors.New("somebody has removed the partition")
	// ErrMIGModeFixed is returned when the MIG mode of the GPU cannot be changed from here. The message says who can.
	ErrMIGModeFixed = errors.New("the MIG mode cannot be changed from here")
)

// Placement is the place of a partition on its GPU. It identifies the partition before, during and after its life, so
// that a creation can always be undone.
type Placement struct {
	Parent  UUID   `json:"parent"`  // the physical GPU
	Profile string `json:"profile"` // as NVIDIA writes it: "1g.10gb+me"
	Start   int    `json:"start"`   // its first memory slice
	Size    int    `json:"size"`    // how many memory slices it occupies
}

func (p Placement) String() string {
	return fmt.Sprintf("%s at %d of %s", p.Profile, p.Start, p.Parent)
}

// Overlaps reports whether both share a memory slice, so that they cannot exist at the same time.
func (p Placement) Overlaps(other Placement) bool {
	return p.Parent == other.Parent && p.Start < other.Start+other.Size && other.Start < p.Start+p.Size
}

// MIG says how a GPU can be and is partitioned (Multi-Instance GPU). The zero value: not at all.
type MIG struct {
	Capable    bool
	Enabled    bool        // MIG mode: partitions can exist, and the whole GPU cannot be used
	Switchable bool        // Enabled can change without a reset of the GPU
	Profiles   []Profile   `json:",omitempty"` // possible partitions, in NVML's order
	Instances  []Partition `json:",omitempty"` // existing partitions, by their starts
	// Unlisted means that there may be more partitions, which NVML has not told.
	Unlisted bool `json:",omitempty"`
	// Refused says why partitions could not be made within the last minute, also those of other GPUs.
	Refused map[Placement]string `json:"-"`
	// Problems are sentences about what could not be read, and about profiles that are not offered.
	Problems []string `json:",omitempty"`
}

// Profile is a kind of partition: its resources and possible places.
type Profile struct {
	Name    string // as NVIDIA writes it: "1g.10gb+me"
	Slices  int    // the G of "Gg.…gb"
	Memory  uint64 // bytes
	Engines Engines
	Size    int   // memory slices
	Starts  []int // the memory slices at which it can start, ascending
}

// Engines are the resources of a partition besides memory.
type Engines struct{ Multiprocessors, Copy, Decoders, Encoders, JPEG, OFA int }

// Partition is a hardware-isolated part of a GPU, or the place for one.
type Partition struct {
	Placement
	Slices  int // the G of its profile
	Engines Engines
	Memory  uint64 // bytes
	UUID    UUID   // "MIG-…"; empty if it does not exist
	// GPUInstance and ComputeInstance are its IDs in NVML; undefined if it does not exist.
	GPUInstance, ComputeInstance int
	// Static means that somebody else has created it. The driver neither creates nor removes it.
	Static bool
}

// Partitions says which partitions of a GPU claims can get.
type Partitions int

const (
	// PartitionsAuto is PartitionsStatic for a GPU that somebody else has partitioned, PartitionsDynamic for one that
	// can be partitioned without a reset, and PartitionsNone for all others.
	PartitionsAuto Partitions = iota
	// PartitionsNone gives the whole GPU only.
	PartitionsNone
	// PartitionsStatic gives the partitions that somebody else has created.
	PartitionsStatic
	// PartitionsDynamic gives every possible partition. The driver creates it when a claim gets it.
	PartitionsDynamic
	// PartitionsOnDemand does, too, but possible partitions are only published as they are needed. The administrator
	// chooses it; a GPU then has PartitionsDynamic, and SharingMode.OnDemand.
	PartitionsOnDemand
)

var partitionings = []string{"auto", "none", "static", "dynamic", "onDemand"}

func (p Partitions) String() string { return partitionings[p] }

// MarshalText writes the name.
func (p Partitions) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the name. The error lists the names.
func (p *Partitions) UnmarshalText(text []byte) error {
	n, err := indexOf(partitionings, string(text))
	*p = Partitions(n)
	return err
}

// partitionMark follows the name of the GPU in the name of a partition.
const partitionMark = "-mig-"

// profileNames turns a profile name into a part of a DNS label: "+me" and "-me" both exist.
var profileNames = strings.NewReplacer("+me.all", "-meall", "-me", "-nome", "+", "-", ".", "")

// PartitionName returns the device name of a partition of the named GPU: "gpu-3b-00-0-mig-1g10gb-4". It is a DNS label.
func PartitionName(parent string, at Placement) string {
	return fmt.Sprintf("%s%s%s-%d", parent, partitionMark, ProfileName(at.Profile), at.Start)
}

// ProfileName returns the profile as it is in names: "1g10gb-me" for "1g.10gb+me".
func ProfileName(profile string) string { return profileNames.Replace(profile) }

// PartitionProfile returns the profile part of a partition's device name: "1g10gb" for "gpu-3b-00-0-mig-1g10gb-4", and
// of a vGPU's: "a16-4q" for "gpu-3b-00-0-vgpu-a16-4q-0". It differs for different profiles, and is empty if the device
// is neither. That of a vGPU which somebody else has made is its own.
func PartitionProfile(device string) string {
	if IsVGPU(device) {
		return vgpuProfile(device)
	}
	_, profile, _ := strings.Cut(device, partitionMark)
	if known := strings.TrimRight(profile, "-0123456789"); known != "" {
		return known // the rest is the placement: no profile ends in a digit
	}
	number, _, _ := strings.Cut(profile, "-") // NVIDIA's DRA driver: 19-4-1 has the profile with the number 19
	return number
}

// ParentName returns the name of the physical GPU of the named device.
func ParentName(device string) string {
	parent, _, _ := strings.Cut(device, partitionMark)
	parent, _, _ = strings.Cut(parent, vgpuMark)
	return strings.TrimSuffix(parent, vfioMark)
}

// IsPartition reports whether the named device is a partition.
func IsPartition(device string) bool { return strings.Contains(device, partitionMark) }

// IsPart reports whether the named device is a partition or a vGPU.
func IsPart(device string) bool { return IsPartition(device) || IsVGPU(device) }
