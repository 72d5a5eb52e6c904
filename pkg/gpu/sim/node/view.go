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
	Major   int // of the device nodes, 0 when they have not been made
	GPUs    []Card

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
}

func newView(p Profile, c content) *View {
	v := &View{Profile: p, Major: c.State.Major, seed: c.Seed, state: c.State}
	for i, g := range p.GPUs {
		// Where a profile says that one of these calls fails it fails; the GPU still has what the call would say.
		v.GPUs = append(v.GPUs, Card{
			Index:  i,
			Name:   g.PCI.Address.DeviceName(),
			UUID:   g.Calls.GetUUID.otherwise(uuidFor(c.Seed, g.PCI.Address)),
			Serial: g.Calls.GetSerial.otherwise(serialFor(c.Seed, g.PCI.Address)),
			Minor:  g.Calls.GetMinorNumber.otherwise(i),
			GPU:    g,
			State:  c.State.GPUs[i],
		})
	}
	return v
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

// Fault is the error that somebody made the call answer, "" when none.
func (c Card) Fault(call string) Error {
	if e, ok := c.State.Faults[call]; ok {
		return e
	}
	return c.State.Faults[AllCalls]
}

// ErrorOf is the error that the profile has for a call whose values it does not model, ERROR_NOT_SUPPORTED if it has none.
func (g GPU) ErrorOf(call string) Error {
	if e, ok := g.Calls.errors[call]; ok {
		return e
	}
	return NotSupported
}

// String is the node as text, without what differs between two nodes of the same profile: a line for the machine, a line for
// each GPU and one for each fault.
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
		if c.State.MemoryUsed != 0 {
			fmt.Fprintf(&b, " used=%dMiB", c.State.MemoryUsed>>20)
		}
		b.WriteByte('\n')
		for _, call := range slices.Sorted(maps.Keys(c.State.Faults)) {
			fmt.Fprintf(&b, "%s fails %s %s\n", c.Name, call, c.State.Faults[call])
		}
	}
	return b.String()
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
	a.value.Used = c.State.MemoryUsed
	return a
}

// ComputeMode is the mode the GPU is in now.
func (c Card) ComputeMode() Answer[ComputeMode] {
	a := c.Calls.GetComputeMode
	a.value = c.State.ComputeMode
	return a
}
