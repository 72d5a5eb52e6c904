// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"time"
)

// ErrNoMemory means that a GPU has less memory free than was asked for.
var ErrNoMemory = errors.New("out of memory")

// Process is a process that holds memory of a GPU.
type Process struct {
	PID     int // on the machine
	Name    string
	Memory  uint64 // bytes
	Threads int    // percent of the multiprocessors that it may use
	Placed  bool   `json:",omitempty"` // it does not exist: somebody put it there, and takes it away
}

func (p Process) placed() bool { return p.Placed }

// String is the process as the node prints it.
func (p Process) String() string {
	return fmt.Sprintf("%d %s memory=%dMiB threads=%d%%", p.PID, p.Name, p.Memory>>20, p.Threads)
}

// held is the memory that processes of the GPU and of its partitions hold, in bytes.
func (c Card) held() uint64 { return held(c.allProcesses()) }

func held(processes []Process) uint64 {
	var sum uint64
	for _, p := range processes {
		sum += p.Memory
	}
	return sum
}

// MPSFault is what is wrong with a daemon of MPS that has the GPU. One field is set.
type MPSFault struct {
	Slow     time.Duration `json:",omitempty"` // it takes so long to start
	Dead     bool          `json:",omitempty"` // it dies: now, and whenever it is started
	Refusing bool          `json:",omitempty"` // it says that it cannot start; one that runs goes on
}

// String is the fault as the node prints it.
func (f MPSFault) String() string {
	switch {
	case f.Dead:
		return "dead"
	case f.Refusing:
		return "refusing"
	}
	return "slow " + f.Slow.String()
}

// BreakMPS makes something wrong with daemons of MPS that have the GPU, in place of what was wrong before.
func (n *Node) BreakMPS(which string, f MPSFault) error {
	if f == (MPSFault{}) || f.Slow < 0 {
		return errors.New("a fault of MPS is one of slow, by more than nothing, dead and refusing")
	}
	return n.change(which, func(_ Card, s *GPUState) error {
		s.MPS = &f
		return nil
	})
}

// HealMPS takes away what BreakMPS did. It is no error if there is nothing.
func (n *Node) HealMPS(which string) error {
	return n.change(which, func(_ Card, s *GPUState) error {
		s.MPS = nil
		return nil
	})
}
