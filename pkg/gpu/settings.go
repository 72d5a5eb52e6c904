// SPDX-License-Identifier: Apache-2.0

package gpu

import "fmt"

// Settings is how a physical GPU is shared in time. The zero value is the factory default, so undoing is configuring with
// Settings{}.
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

// Interval is how long a process may use the GPU while others wait for it. The zero value is the factory default.
type Interval string

// The intervals other than the factory default, as the driver knows them.
const (
	IntervalShort  Interval = "Short"
	IntervalMedium Interval = "Medium"
	IntervalLong   Interval = "Long"
)

// ComputeMode says which processes may use the GPU. The zero value is the factory default: all.
type ComputeMode string

// ExclusiveProcess lets one process use the GPU. When that is the server of MPS, only its clients get at the GPU.
const ExclusiveProcess ComputeMode = "EXCLUSIVE_PROCESS"
