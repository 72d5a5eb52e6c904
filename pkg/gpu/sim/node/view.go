// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// View is a node at one moment. It does not change.
type View struct {
	Profile Profile
	Major   int    // of the device nodes, 0 when they have not been made
	GPUs    []Card // by PCI address, as NVML enumerates them; those that are off the bus among them
	Crash   *Crash // the order that a process should crash, nil when there is none
	Steps   *Steps // what has been recorded of steps, nil when they are not recorded

	gone  []Card // those that were removed
	seed  string
	state State
}

// Card is a GPU of a view.
type Card struct {
	Index  int
	Name   string // the device name, "gpu-1b-00-0"
	UUID   string
	Serial string
	Minor  int // N of /dev/nvidiaN
	GPU        // what the profile says of it
	State  GPUState

	entry int // its place in State.GPUs
}

func newView(p Profile, c content) *View {
	v := &View{Profile: p, Major: c.State.Major, Crash: c.State.Crash, Steps: c.State.Steps, seed: c.Seed, state: c.State}
	for i, s := range c.State.GPUs {
		card := newCard(p, c.Seed, i, s)
		if s.Removed {
			v.gone = append(v.gone, card)
			continue
		}
		v.GPUs = append(v.GPUs, card)
	}
	slices.SortStableFunc(v.GPUs, func(a, b Card) int { return a.PCI.Address.compare(b.PCI.Address) })
	for i := range v.GPUs {
		v.GPUs[i].Index = i
	}
	return v
}

// newCard is the GPU of an entry of the state. Its index follows from the others.
func newCard(p Profile, seed string, entry int, s GPUState) Card {
	if s.Added != nil {
		return s.Added.card(p.GPUs[s.Added.Like], entry, s)
	}
	g := p.GPUs[entry]
	// Where a profile says that one of these calls fails it fails; the GPU still has what the call would say.
	return Card{
		Name:   g.PCI.Address.DeviceName(),
		UUID:   g.Calls.GetUUID.otherwise(uuidFor(seed, g.PCI.Address)),
		Serial: g.Calls.GetSerial.otherwise(serialFor(seed, g.PCI.Address)),
		Minor:  g.Calls.GetMinorNumber.otherwise(entry),
		GPU:    g,
		State:  s,
		entry:  entry,
	}
}

// Card finds a GPU by its device name, index, UUID or PCI address.
func (v *View) Card(which string) (Card, error) {
	for _, c := range v.GPUs {
		if which == c.Name || which == strconv.Itoa(c.Index) || which == c.UUID || strings.EqualFold(which, c.PCI.Address.String()) {
			return c, nil
		}
	}
	var names []string
	for _, c := range v.GPUs {
		names = append(names, c.Name)
	}
	if len(names) == 0 {
		return Card{}, fmt.Errorf("no GPU %q: this node has none", which)
	}
	return Card{}, fmt.Errorf("no GPU %q; this node has %s (an index from 0 to %d or a UUID will also do)",
		which, strings.Join(names, ", "), len(names)-1)
}

// ErrorOf is the error that the profile has for a call whose values it does not model, ERROR_NOT_SUPPORTED if it has none.
func (g GPU) ErrorOf(call string) Error {
	if e := g.Calls.ErrorOnly(call); e != "" {
		return e
	}
	return NotSupported
}

// String is the node as text, without what differs between two nodes of the same profile: a line for the machine, a line for
// each GPU, one for each of its processes, partitions and faults, and one for the order to crash.
func (v *View) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s driver=%s\n", v.Profile.Name, v.Profile.Driver())
	for _, c := range v.GPUs {
		name, e := c.Calls.GetName.Get()
		if e != "" {
			name = string(e)
		}
		memory, _ := c.Calls.GetMemoryInfo.Get()
		fmt.Fprintf(&b, "%s %s memory=%dMiB numa=%d root=%s mode=%s", c.Name, name, memory.Total>>20, c.PCI.NUMANode, c.PCI.Root,
			c.State.ComputeMode)
		if c.State.TimeSlice != 0 {
			fmt.Fprintf(&b, " interval=%s", c.State.TimeSlice)
		}
		if used := c.State.MemoryUsed + c.held(); used != 0 {
			fmt.Fprintf(&b, " used=%dMiB", used>>20)
		}
		b.WriteString(c.migText())
		if c.State.Unplugged {
			b.WriteString(" unplugged")
		}
		b.WriteByte('\n')
		for _, p := range c.State.Processes {
			fmt.Fprintf(&b, "%s process %s\n", c.Name, p)
		}
		c.printInstances(&b)
		if c.State.MPS != nil {
			fmt.Fprintf(&b, "%s mps %s\n", c.Name, c.State.MPS)
		}
		for _, call := range slices.Sorted(maps.Keys(c.State.Faults)) {
			fmt.Fprintf(&b, "%s fails %s %s\n", c.Name, call, c.State.Faults[call])
		}
		for _, call := range slices.Sorted(maps.Keys(c.State.Delays)) {
			fmt.Fprintf(&b, "%s slow %s %s\n", c.Name, call, c.State.Delays[call])
		}
	}
	if v.Crash != nil {
		fmt.Fprintf(&b, "%s\n", v.Crash)
	}
	return b.String()
}

// migText is the mode of MIG as the node prints it, nothing when it is off and stays so.
func (c Card) migText() string {
	switch c.MIG().Mode {
	case MigMode{Current: 1, Pending: 1}:
		return " mig=on"
	case MigMode{Current: 1}:
		return " mig=on,pending=off"
	case MigMode{Pending: 1}:
		return " mig=off,pending=on"
	}
	return ""
}

// printInstances writes a line for each compute instance of the GPU, one for each GPU instance without any, and their processes.
func (c Card) printInstances(b *strings.Builder) {
	profiles, _ := c.Calls.GetGpuInstanceProfileInfo.Get()
	for _, g := range c.MIG().Instances {
		if len(g.Compute) == 0 {
			fmt.Fprintf(b, "%s/%s@%d gi=%d\n", c.Name, profiles[g.Profile].Name, g.Span.Start, g.ID)
		}
		for _, ci := range g.Compute {
			name := c.Name + "/" + c.partition(g, ci, 0).place()
			fmt.Fprintf(b, "%s gi=%d ci=%d\n", name, g.ID, ci.ID)
			for _, p := range ci.Processes {
				fmt.Fprintf(b, "%s process %s\n", name, p)
			}
		}
	}
}

// String is the node as it is now, as text; see View.String.
func (n *Node) String() string {
	v, err := n.View()
	if err != nil {
		return err.Error() + "\n"
	}
	return v.String()
}

// Memory is the GPU's memory as it is now.
func (c Card) Memory() Answer[Memory] {
	a := c.Calls.GetMemoryInfo
	a.value.Used = min(c.State.MemoryUsed+c.held(), a.value.Total-a.value.Reserved)
	return a
}

// ComputeMode is the mode the GPU is in now.
func (c Card) ComputeMode() Answer[ComputeMode] {
	a := c.Calls.GetComputeMode
	a.value = c.State.ComputeMode
	return a
}

// timeSliceSince is the compute capability from which on a GPU has a time slice to set: that of Volta. Of the GPUs before,
// which the driver refuses one by one ("Not Supported" on a Tesla P4), some have one; the simulation does not tell them apart.
const timeSliceSince = 7

// HasTimeSlice says whether the GPU has a time slice that can be set.
func (c Card) HasTimeSlice() bool {
	capability, _ := c.Calls.GetCudaComputeCapability.Get()
	return capability.Major >= timeSliceSince
}
