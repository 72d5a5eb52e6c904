// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ComputeModes are the compute modes a GPU may be set to, as ParseComputeMode reads them.
func ComputeModes() []string { return []string{"DEFAULT", "EXCLUSIVE_PROCESS", "PROHIBITED"} }

// ParseComputeMode reads a compute mode as NVML's constants name it, "EXCLUSIVE_PROCESS" for example.
func ParseComputeMode(s string) (ComputeMode, error) {
	number, ok := ComputeMode(0).names()["COMPUTEMODE_"+s]
	if !ok {
		return 0, fmt.Errorf("compute mode %q is not one of %s", s, strings.Join(ComputeModes(), ", "))
	}
	return ComputeMode(number), nil
}

// String is the mode as nvidia-smi's query writes it.
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

// Valid says whether a GPU can be in the mode.
func (m ComputeMode) Valid() bool {
	return slices.Contains(slices.Collect(maps.Values(m.names())), int(m))
}

// TimeSlices are the time slices a GPU may be set to, as they are numbered.
func TimeSlices() []string { return byNumber(TimeSlice(0).names()) }

// ParseTimeSlice reads a time slice, "Long" for example.
func ParseTimeSlice(s string) (TimeSlice, error) {
	number, ok := TimeSlice(0).names()[s]
	if !ok {
		return 0, fmt.Errorf("time slice %q is not one of %s", s, strings.Join(TimeSlices(), ", "))
	}
	return TimeSlice(number), nil
}

// String is the time slice as nvidia-smi writes it.
func (t TimeSlice) String() string {
	for name, number := range t.names() {
		if number == int(t) {
			return name
		}
	}
	return fmt.Sprintf("TimeSlice(%d)", int(t))
}

// Valid says whether a GPU can have the time slice.
func (t TimeSlice) Valid() bool { return t >= 0 && int(t) < len(t.names()) }

// ParseError reads the name of an NVML error, "ERROR_GPU_IS_LOST" for example.
func ParseError(s string) (Error, error) {
	if _, ok := errorNumbers[s]; !ok {
		return "", fmt.Errorf("error %q is not one of %s", s, strings.Join(byNumber(errorNumbers), ", "))
	}
	return Error(s), nil
}

// change changes one GPU; which is what View.Card takes.
func (n *Node) change(which string, f func(Card, *GPUState) error) error {
	return n.Change(func(s *State) error {
		c, err := n.last.Card(which) // what Change has just read, under its lock
		if err != nil {
			return err
		}
		return f(c, &s.GPUs[c.entry])
	})
}

// SetComputeMode puts the GPU into the mode.
func (n *Node) SetComputeMode(which string, mode ComputeMode) error {
	if !mode.Valid() {
		return fmt.Errorf("%s is not one of the compute modes %s", mode, strings.Join(ComputeModes(), ", "))
	}
	return n.change(which, func(_ Card, s *GPUState) error {
		s.ComputeMode = mode
		return nil
	})
}

// SetTimeSlice gives the GPU the time slice. A GPU that has no time slice to set refuses every one.
func (n *Node) SetTimeSlice(which string, t TimeSlice) error {
	if !t.Valid() {
		return fmt.Errorf("%s is not one of the time slices %s", t, strings.Join(TimeSlices(), ", "))
	}
	return n.change(which, func(c Card, s *GPUState) error {
		if !c.HasTimeSlice() {
			return fmt.Errorf("%s: it has no time slice to set: that came with compute capability %d.0", c.Name, timeSliceSince)
		}
		s.TimeSlice = t
		return nil
	})
}

// SetMemoryUsed makes the GPU say that so many bytes of its memory are in use, beside what its processes hold.
func (n *Node) SetMemoryUsed(which string, bytes uint64) error {
	return n.change(which, func(c Card, s *GPUState) error {
		m, e := c.Calls.GetMemoryInfo.Get()
		if e != "" {
			return fmt.Errorf("%s: its memory is unknown: GetMemoryInfo answers %s", c.Name, e)
		}
		if free := m.Total - m.Reserved - min(c.held(), m.Total-m.Reserved); bytes > free {
			return fmt.Errorf("%s: %d bytes used: at most %d of its memory are free for use", c.Name, bytes, free)
		}
		s.MemoryUsed = bytes
		return nil
	})
}

// SetMajor notes the major number of the node's device nodes.
func (n *Node) SetMajor(major int) error {
	return n.Change(func(s *State) error {
		s.Major = major
		return nil
	})
}
