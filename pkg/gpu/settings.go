// SPDX-License-Identifier: Apache-2.0

package gpu

import "fmt"

// DesiredState is the desired state of a physical GPU for the claims on it. The zero value changes nothing.
type DesiredState struct {
	Settings *Settings // nil: unchanged
	MIG      MIGMode
}

// MIGMode is the desired MIG mode of a physical GPU.
type MIGMode int

const (
	// MIGUnchanged leaves the mode alone.
	MIGUnchanged MIGMode = iota
	// MIGOn is for GPUs with partitions for claims.
	MIGOn
	// MIGOff is for GPUs that claims use as a whole.
	MIGOff
	// MIGOffIfUnused is for GPUs whose last partition has been removed. The mode stays on while a partition or a
	// process uses the GPU, and if disabling it needs a reset.
	MIGOffIfUnused
)

func (m MIGMode) String() string { return []string{"unchanged", "on", "off", "off if unused"}[m] }

// Settings are the time slice and the compute mode of a physical GPU. The zero value is the factory default.
type Settings struct {
	Interval Interval    `json:"interval,omitempty"`
	Mode     ComputeMode `json:"mode,omitempty"`
}

func (s Settings) String() string {
	interval, mode := s.Interval, s.Mode
	if interval == "" {
		interval = "Default"
	}
	if mode == "" {
		mode = "DEFAULT"
	}
	return fmt.Sprintf("time slice %s, compute mode %s", interval, mode)
}

// Interval is the time slice: how long a process may use the GPU while others wait. The zero value is the factory
// default.
type Interval string

// Intervals. IntervalDefault restores the factory default after a claim has set another; the zero value leaves the time
// slice unchanged.
const (
	IntervalDefault Interval = "Default"

	IntervalShort  Interval = "Short"
	IntervalMedium Interval = "Medium"
	IntervalLong   Interval = "Long"
)

// ComputeMode says which processes may use the GPU. The zero value is the factory default: all.
type ComputeMode string

const (
	// ExclusiveProcess lets one process use the GPU. If that is an MPS server, only its clients can use the GPU.
	ExclusiveProcess ComputeMode = "EXCLUSIVE_PROCESS"
	// Prohibited lets no CUDA program use the GPU. Only an administrator sets it.
	Prohibited ComputeMode = "PROHIBITED"
)
