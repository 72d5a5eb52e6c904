// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// View is an immutable snapshot of a node.
type View struct {
	Profile hwprofile.Profile
	Major   int    // of the device nodes, 0 before they exist
	GPUs    []GPU  // that NVML counts, by PCI address, in its order; includes unplugged ones
	Crash   *Crash // nil if none is ordered
	Steps   *Steps // nil if not recorded
	// Unloaded: the driver is not loaded.
	Unloaded bool

	gone  []GPU // removed GPUs
	away  []GPU // GPUs that NVIDIA's driver does not have: NVML does not count them
	seed  string
	state State
}

// GPU is a GPU of a view.
type GPU struct {
	Index         int    // of NVML; -1: another driver has it
	Name          string // the device name, "gpu-1b-00-0"
	UUID          string
	Serial        string
	Minor         int // N of /dev/nvidiaN
	hwprofile.GPU     // from the profile
	State         GPUState

	entry int // index in State.GPUs
}

func newView(p hwprofile.Profile, c content) *View {
	if c.State.Driver != "" {
		p.System.DriverVersion = p.System.DriverVersion.With(c.State.Driver)
	}
	v := &View{Profile: p, Major: c.State.Major, Crash: c.State.Crash, Steps: c.State.Steps,
		Unloaded: c.State.Unloaded, seed: c.Seed, state: c.State}
	for i, s := range c.State.GPUs {
		gpu := newGPU(p, c.Seed, i, s)
		if s.Removed {
			v.gone = append(v.gone, gpu)
			continue
		}
		if gpu.Binding().Driver != NVIDIADriver {
			gpu.Index = -1
			v.away = append(v.away, gpu)
			continue
		}
		v.GPUs = append(v.GPUs, gpu)
	}
	slices.SortStableFunc(v.GPUs, func(a, b GPU) int { return a.PCI.Address.Compare(b.PCI.Address) })
	for i := range v.GPUs {
		v.GPUs[i].Index = i
	}
	return v
}

// newGPU returns the GPU of an entry of the state. newView sets its index.
func newGPU(p hwprofile.Profile, seed string, entry int, s GPUState) GPU {
	var c GPU
	if s.Added != nil {
		c = s.Added.gpu(p.GPUs[s.Added.Like])
	} else {
		g := p.GPUs[entry]
		// Where the profile has an error for one of these calls, the call fails, but the GPU still has a value.
		c = GPU{
			Name:   g.PCI.Address.DeviceName(),
			UUID:   g.Calls.GetUUID.ValueOr(uuidFor(seed, g.PCI.Address)),
			Serial: g.Calls.GetSerial.ValueOr(serialFor(seed, g.PCI.Address)),
			Minor:  g.Calls.GetMinorNumber.ValueOr(entry),
			GPU:    g,
		}
	}
	if s.Minor != nil {
		c.Minor = *s.Minor
		c.Calls.GetMinorNumber = c.Calls.GetMinorNumber.With(*s.Minor)
	}
	c.State, c.entry = s, entry
	return c
}

// GPU finds a GPU by its device name, index, UUID or PCI address.
func (v *View) GPU(which string) (GPU, error) { return find(v.GPUs, which) }

func find(gpus []GPU, which string) (GPU, error) {
	for _, c := range gpus {
		if which == c.Name || which == strconv.Itoa(c.Index) || which == c.UUID ||
			strings.EqualFold(which, c.PCI.Address.String()) {
			return c, nil
		}
	}
	var names []string
	for _, c := range gpus {
		names = append(names, c.Name)
	}
	if len(names) == 0 {
		return GPU{}, fmt.Errorf("no GPU %q: this node has none", which)
	}
	return GPU{}, fmt.Errorf("no GPU %q; this node has %s (an index from 0 to %d or a UUID will also do)",
		which, strings.Join(names, ", "), len(names)-1)
}

// String is the node as text, without what differs between nodes of one profile. It has a line for the machine, for
// each GPU, its processes, partitions, vGPUs and faults, for each GPU with another driver, and for an ordered crash.
func (v *View) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s driver=%s", v.Profile.Name, v.Profile.Driver())
	if v.Unloaded {
		b.WriteString(" unloaded")
	}
	b.WriteByte('\n')
	for _, c := range v.GPUs {
		name, e := c.Calls.GetName.Get()
		if e != "" {
			name = string(e)
		}
		memory, _ := c.Calls.GetMemoryInfo.Get()
		fmt.Fprintf(&b, "%s %s memory=%dMiB numa=%d root=%s mode=%s", c.Name, name, memory.Total>>20, c.PCI.NUMANode,
			c.PCI.Root,
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
		for _, d := range c.State.VGPUs {
			fmt.Fprintf(&b, "%s vgpu %s\n", c.Name, d.Type)
		}
		if c.State.Health != nil {
			fmt.Fprintf(&b, "%s health %s\n", c.Name, c.Health())
		}
		if s := c.State.License; s != nil {
			fmt.Fprintf(&b, "%s %s\n", c.Name, map[hwprofile.Switch]string{hwprofile.Enabled: "licensed",
				hwprofile.Disabled: "unlicensed"}[*s])
		}
		if a := c.State.AER; a != (AER{}) {
			fmt.Fprintf(&b, "%s aer fatal=%d nonfatal=%d correctable=%d\n", c.Name, a.Fatal, a.Nonfatal, a.Correctable)
		}
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
	for _, c := range v.away {
		fmt.Fprintf(&b, "%s driver=%s", c.Name, cmp.Or(c.Binding().Driver, "none"))
		if c.State.Unplugged {
			b.WriteString(" unplugged")
		}
		b.WriteByte('\n')
	}
	if v.Crash != nil {
		fmt.Fprintf(&b, "%s\n", v.Crash)
	}
	return b.String()
}

// migText is the MIG mode as the node prints it, "" if it is off and stays off.
func (c GPU) migText() string {
	switch c.MIG().Mode {
	case hwprofile.MigMode{Current: 1, Pending: 1}:
		return " mig=on"
	case hwprofile.MigMode{Current: 1}:
		return " mig=on,pending=off"
	case hwprofile.MigMode{Pending: 1}:
		return " mig=off,pending=on"
	}
	return ""
}

// printInstances writes a line for each compute instance, for each GPU instance without any, and for their processes.
func (c GPU) printInstances(b *strings.Builder) {
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

// String is the current view as text; see View.String.
func (n *Node) String() string {
	v, err := n.View()
	if err != nil {
		return err.Error() + "\n"
	}
	return v.String()
}

// Memory is the current answer of GetMemoryInfo.
func (c GPU) Memory() hwprofile.Answer[hwprofile.Memory] {
	memory, e := c.Calls.GetMemoryInfo.Get()
	if e != "" {
		return c.Calls.GetMemoryInfo
	}
	memory.Used = min(c.State.MemoryUsed+c.held(), memory.Total-memory.Reserved)
	return c.Calls.GetMemoryInfo.With(memory)
}

// ComputeMode is the current answer of GetComputeMode.
func (c GPU) ComputeMode() hwprofile.Answer[hwprofile.ComputeMode] {
	return c.Calls.GetComputeMode.With(c.State.ComputeMode)
}

// timeSliceSince is the first compute capability with a configurable time slice: Turing's, as NVIDIA's open kernel
// modules have it. nvidia-smi says "Not Supported" of older GPUs.
var timeSliceSince = hwprofile.Capability{Major: 7, Minor: 5}

// HasTimeSlice reports whether the GPU has a configurable time slice.
func (c GPU) HasTimeSlice() bool {
	capability, _ := c.Calls.GetCudaComputeCapability.Get()
	return cmp.Or(cmp.Compare(capability.Major, timeSliceSince.Major),
		cmp.Compare(capability.Minor, timeSliceSince.Minor)) >= 0
}
