// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"time"
)

// ErrNoMemory means that a GPU has less free memory than requested.
var ErrNoMemory = errors.New("out of memory")

// Process is a process that holds memory of a GPU.
type Process struct {
	PID     int // on the machine
	Name    string
	Memory  uint64 // bytes
	Threads int    // limit in percent of the multiprocessors
	Placed  bool   `json:",omitempty"` // fake: added by AddProcess, removed by RemoveProcess
}

func (p Process) placed() bool { return p.Placed }

// String is the process as the node prints it.
func (p Process) String() string {
	return fmt.Sprintf("%d %s memory=%dMiB threads=%d%%", p.PID, p.Name, p.Memory>>20, p.Threads)
}

// held is the memory held by processes of the GPU and of its partitions, in bytes.
func (c GPU) held() uint64 { return held(c.allProcesses()) }

func held(processes []Process) uint64 {
	var sum uint64
	for _, p := range processes {
		sum += p.Memory
	}
	return sum
}

// MPSFault is a fault of the MPS daemons that use the GPU. Exactly one field is set.
type MPSFault struct {
	Slow     time.Duration `json:",omitempty"` // the daemon starts this much later
	Dead     bool          `json:",omitempty"` // the daemon exits now and at every start
	Refusing bool          `json:",omitempty"` // the daemon refuses to start; a running one continues
	// Wedged: a client was killed with work in flight. The other clients of the server end, and later ones hang. It
	// ends with the server.
	Wedged bool `json:",omitempty"`
}

// String is the fault as the node prints it.
func (f MPSFault) String() string {
	switch {
	case f.Dead:
		return "dead"
	case f.Refusing:
		return "refusing"
	case f.Wedged:
		return "wedged"
	}
	return "slow " + f.Slow.String()
}

// BreakMPS injects a fault into the MPS daemons that use the GPU, and replaces an earlier one.
func (n *Node) BreakMPS(which string, f MPSFault) error {
	if f == (MPSFault{}) || f.Slow < 0 {
		return errors.New("a fault of MPS is one of slow, by more than nothing, dead, refusing and wedged")
	}
	return n.change(which, func(_ GPU, s *GPUState) error {
		s.MPS = &f
		return nil
	})
}

// HealMPS removes the fault of BreakMPS. It is no error if there is none.
func (n *Node) HealMPS(which string) error {
	return n.change(which, func(_ GPU, s *GPUState) error {
		s.MPS = nil
		return nil
	})
}
