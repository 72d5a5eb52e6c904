// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// change changes one GPU, which View.GPU finds.
func (n *Node) change(which string, f func(GPU, *GPUState) error) error {
	return n.changeOneOf(func(v *View) []GPU { return v.GPUs }, which, f)
}

// changePresent changes one GPU, also one that another driver has.
func (n *Node) changePresent(which string, f func(GPU, *GPUState) error) error {
	return n.changeOneOf((*View).present, which, f)
}

func (n *Node) changeOneOf(gpus func(*View) []GPU, which string, f func(GPU, *GPUState) error) error {
	return n.Change(func(s *State) error {
		c, err := find(gpus(n.last), which) // Change has just read it and holds the lock
		if err != nil {
			return err
		}
		return f(c, &s.GPUs[c.entry])
	})
}

// SetComputeMode sets the compute mode of the GPU.
func (n *Node) SetComputeMode(which string, mode hwprofile.ComputeMode) error {
	if !mode.Valid() {
		return fmt.Errorf("%s is not one of the compute modes %s", mode, strings.Join(hwprofile.ComputeModes(), ", "))
	}
	return n.change(which, func(_ GPU, s *GPUState) error {
		s.ComputeMode = mode
		return nil
	})
}

// SetTimeSlice sets the time slice of the GPU. It is an error if HasTimeSlice is false.
func (n *Node) SetTimeSlice(which string, t hwprofile.TimeSlice) error {
	if !t.Valid() {
		return fmt.Errorf("%s is not one of the time slices %s", t, strings.Join(hwprofile.TimeSlices(), ", "))
	}
	return n.change(which, func(c GPU, s *GPUState) error {
		if !c.HasTimeSlice() {
			return fmt.Errorf("%s: it has no time slice to set: that came with compute capability %d.%d", c.Name,
				timeSliceSince.Major, timeSliceSince.Minor)
		}
		s.TimeSlice = t
		return nil
	})
}

// SetMemoryUsed sets how many bytes of the GPU's memory are in use besides those of its processes.
func (n *Node) SetMemoryUsed(which string, bytes uint64) error {
	return n.change(which, func(c GPU, s *GPUState) error {
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

// SetMajor stores the major number of the node's device nodes.
func (n *Node) SetMajor(major int) error {
	return n.Change(func(s *State) error {
		s.Major = major
		return nil
	})
}
