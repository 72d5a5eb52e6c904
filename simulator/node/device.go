// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// Device is a GPU or a partition, as CUDA programs use it.
type Device struct {
	GPU
	Partition *Partition // nil for a whole GPU
}

// ID is the UUID that identifies the device to programs.
func (d Device) ID() string {
	if d.Partition != nil {
		return d.Partition.Compute.UUID
	}
	return d.UUID
}

// Memory returns the current memory of the device.
func (d Device) Memory() hwprofile.Answer[hwprofile.Memory] {
	if d.Partition != nil {
		return hwprofile.Value(d.Partition.Memory())
	}
	return d.GPU.Memory()
}

// Processes returns the processes that use the device.
func (d Device) Processes() []Process {
	if d.Partition != nil {
		return d.Partition.Compute.Processes
	}
	return d.State.Processes
}

// Devices returns the devices of the GPU: its partitions in MIG mode, otherwise the GPU itself.
func (c GPU) Devices() []Device {
	if !c.Partitioned() {
		return []Device{{GPU: c}}
	}
	var out []Device
	for _, p := range c.Partitions() {
		out = append(out, Device{c, &p})
	}
	return out
}

// Device finds a GPU as GPU does, or a partition by its UUID or its printed name, "gpu-1b-00-0/1g.10gb@4". The GPU's
// part of the name may be anything that GPU accepts. If several compute instances match, it returns the first.
func (v *View) Device(which string) (Device, error) {
	if strings.HasPrefix(which, "MIG-") {
		if c, p, ok := v.Partition(which); ok {
			return Device{c, &p}, nil
		}
		return Device{}, fmt.Errorf("no partition %q", which)
	}
	gpu, place, ofPartition := strings.Cut(which, "/")
	c, err := v.GPU(gpu)
	if err != nil || !ofPartition {
		return Device{GPU: c}, err
	}
	all := c.Partitions()
	at := slices.IndexFunc(all, func(p Partition) bool { return place == p.place() })
	if at < 0 {
		return Device{}, fmt.Errorf("%s has no partition %s", c.Name, place)
	}
	return Device{c, &all[at]}, nil
}

// place is the partition as the node prints it after the name of its GPU.
func (p Partition) place() string { return fmt.Sprintf("%s@%d", p.Name, p.Instance.Span.Start) }

// changeProcesses changes the processes of the device that View.Device finds. Their memory is limited to that of the
// device.
func (n *Node) changeProcesses(which string, f func(before []Process) ([]Process, error)) error {
	return n.Change(func(s *State) error {
		d, err := n.last.Device(which) // what Change has just read, under its lock
		if err != nil {
			return err
		}
		if d.Partition == nil && d.Partitioned() {
			return refuse(hwprofile.InUse, "%s is in MIG mode: programs can use its partitions only", d.Name)
		}
		before := d.Processes()
		after, err := f(slices.Clone(before))
		if err != nil {
			return err
		}
		m, _ := d.Memory().Get()
		if free := m.Total - m.Reserved - m.Used; held(after) > held(before)+free {
			return fmt.Errorf("%s: %w: %d bytes are free", d.Name, ErrNoMemory, free)
		}
		s.GPUs[d.entry].setProcesses(d, after)
		return nil
	})
}

func (s *GPUState) setProcesses(d Device, processes []Process) {
	if d.Partition == nil {
		s.Processes = processes
		return
	}
	if s.MIG == nil {
		m := initialMIG(d.GPU.GPU)
		s.MIG = &m
	}
	for _, g := range s.MIG.Instances {
		for i := range g.Compute {
			if g.Compute[i].UUID == d.Partition.Compute.UUID {
				g.Compute[i].Processes = processes
			}
		}
	}
}

// SetProcesses replaces the processes that use the device through MPS; those of AddProcess stay. If they hold more
// memory than the device has, it returns ErrNoMemory and changes nothing. It writes to disk only if something changes.
func (n *Node) SetProcesses(which string, processes []Process) error {
	v, err := n.View()
	if err != nil {
		return err
	}
	d, err := v.Device(which)
	if err != nil {
		return err
	}
	if slices.Equal(withPlaced(d.Processes(), processes), d.Processes()) {
		return nil
	}
	return n.changeProcesses(which, func(before []Process) ([]Process, error) {
		return withPlaced(before, processes), nil
	})
}

// withPlaced returns the processes of AddProcess among before, then processes.
func withPlaced(before, processes []Process) []Process {
	placed := slices.DeleteFunc(slices.Clone(before), func(p Process) bool { return !p.placed() })
	return append(placed, processes...)
}

// firstPlacedPID is above the highest PID of Linux.
const firstPlacedPID = 1<<22 + 1

// AddProcess adds a fake process to the device that View.Device finds.
func (n *Node) AddProcess(which, name string, memory uint64) error {
	if name == "" || strings.ContainsAny(name, " \n") {
		return fmt.Errorf("process %q: want a name of one word", name)
	}
	return n.changeProcesses(which, func(before []Process) ([]Process, error) {
		pid := firstPlacedPID
		for _, c := range n.last.GPUs {
			for _, p := range c.allProcesses() {
				pid = max(pid, p.PID+1)
			}
		}
		return append(before, Process{PID: pid, Name: name, Memory: memory, Threads: 100, Placed: true}), nil
	})
}

// RemoveProcess removes all processes of that name that AddProcess has added to the device. It is an error if there are
// none.
func (n *Node) RemoveProcess(which, name string) error {
	return n.changeProcesses(which, func(before []Process) ([]Process, error) {
		after := slices.DeleteFunc(slices.Clone(before), func(p Process) bool { return p.Placed && p.Name == name })
		if len(after) == len(before) {
			return nil, fmt.Errorf("%s has no process %s that somebody put there", which, name)
		}
		return after, nil
	})
}

// allProcesses returns the processes of the GPU and of all its partitions.
func (c GPU) allProcesses() []Process {
	out := slices.Clone(c.State.Processes)
	for _, p := range c.Partitions() {
		out = append(out, p.Compute.Processes...)
	}
	return out
}

// ProcessName returns the name of a process that uses a GPU.
func (v *View) ProcessName(pid int) (name string, ok bool) {
	for _, c := range v.GPUs {
		for _, p := range c.allProcesses() {
			if p.PID == pid {
				return p.Name, true
			}
		}
	}
	return "", false
}
