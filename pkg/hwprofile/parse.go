// SPDX-License-Identifier: Apache-2.0

package hwprofile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ComputeModes returns the compute modes that ParseComputeMode accepts.
func ComputeModes() []string { return []string{"DEFAULT", "EXCLUSIVE_PROCESS", "PROHIBITED"} }

// ParseComputeMode parses a compute mode by NVML's constant, for example "EXCLUSIVE_PROCESS".
func ParseComputeMode(s string) (ComputeMode, error) {
	number, ok := ComputeMode(0).names()["COMPUTEMODE_"+s]
	if !ok {
		return 0, fmt.Errorf("compute mode %q is not one of %s", s, strings.Join(ComputeModes(), ", "))
	}
	return ComputeMode(number), nil
}

// String formats the mode as nvidia-smi's query does.
func (m ComputeMode) String() string {
	switch m {
	case 0:
		return "Default"
	case 2:
		return "Prohibited"
	case ComputeModeExclusiveProcess:
		return "Exclusive_Process"
	}
	return fmt.Sprintf("ComputeMode(%d)", int(m))
}

// Valid reports whether the mode exists.
func (m ComputeMode) Valid() bool {
	return slices.Contains(slices.Collect(maps.Values(m.names())), int(m))
}

// TimeSlices returns the time slices in the order of their numbers.
func TimeSlices() []string { return byNumber(TimeSlice(0).names()) }

// ParseTimeSlice parses a time slice, for example "Long".
func ParseTimeSlice(s string) (TimeSlice, error) {
	number, ok := TimeSlice(0).names()[s]
	if !ok {
		return 0, fmt.Errorf("time slice %q is not one of %s", s, strings.Join(TimeSlices(), ", "))
	}
	return TimeSlice(number), nil
}

// String formats the time slice as nvidia-smi does.
func (t TimeSlice) String() string {
	for name, number := range t.names() {
		if number == int(t) {
			return name
		}
	}
	return fmt.Sprintf("TimeSlice(%d)", int(t))
}

// Valid reports whether the time slice exists.
func (t TimeSlice) Valid() bool { return t >= 0 && int(t) < len(t.names()) }

// ParseError parses the name of an NVML error, for example "ERROR_GPU_IS_LOST".
func ParseError(s string) (Error, error) {
	if _, ok := errorNumbers[s]; !ok {
		return "", fmt.Errorf("error %q is not one of %s", s, strings.Join(byNumber(errorNumbers), ", "))
	}
	return Error(s), nil
}
