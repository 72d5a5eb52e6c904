// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// State is everything that can change on a node. The rest follows from its profile.
type State struct {
	Major  int        // of the device nodes; 0 before they exist
	GPUs   []GPUState // the profile's in its order, then added ones; entries are never deleted
	Driver string     `json:",omitempty"` // version since a reload; "": that of the profile
	Crash  *Crash     `json:",omitempty"` // nil: none is ordered
	Steps  *Steps     `json:",omitempty"` // nil: not recorded
	// Unloaded: NVML answers ERROR_DRIVER_NOT_LOADED.
	Unloaded bool `json:",omitempty"`
}

// GPUState is everything that can change on a GPU.
type GPUState struct {
	ComputeMode hwprofile.ComputeMode
	MemoryUsed  uint64              // bytes
	TimeSlice   hwprofile.TimeSlice `json:",omitempty"`
	Processes   []Process           `json:",omitempty"` // their memory adds to MemoryUsed
	MIG         *MIG                `json:",omitempty"` // nil: that of the profile
	MPS         *MPSFault           `json:",omitempty"` // nil: no fault
	Faults      map[string]Fault    `json:",omitempty"` // errors by call, or AllCalls
	Delays      map[string]Fault    `json:",omitempty"` // delays by call, or AllCalls
	Unplugged   bool                `json:",omitempty"` // off the bus: NVML counts it, every call fails
	Removed     bool                `json:",omitempty"` // permanently: NVML does not count it
	Minor       *int                `json:",omitempty"` // of the device node; nil: that of the profile
	Added       *Added              `json:",omitempty"` // nil for a GPU of the profile
	Health      *Health             `json:",omitempty"` // nil: nothing is wrong
	Binding     *Binding            `json:",omitempty"` // nil: NVIDIA's driver has it
	Sound       *Binding            `json:",omitempty"` // of the card's sound function; nil: its driver has it
	Persistence *hwprofile.Switch   `json:",omitempty"` // nil: that of the profile
	AER         AER                 `json:",omitzero"`
	License     *hwprofile.Switch   `json:",omitempty"` // nil: that of the profile
	VGPUs       []VGPU              `json:",omitempty"` // its mediated devices
}

// AllCalls means every call of the GPU.
const AllCalls = "all"

// format is the version of the layout of content. Earlier ones have a part of it. A state that has no more than that of
// the first version is written as format 1: then the plugin of the first release can read it after a downgrade.
const format = 10

// isFirst reports whether the state has no more than a state of format 1 can hold.
func (s State) isFirst() bool {
	first := State{Major: s.Major}
	for _, g := range s.GPUs {
		first.GPUs = append(first.GPUs,
			GPUState{ComputeMode: g.ComputeMode, MemoryUsed: g.MemoryUsed, Faults: g.Faults})
		for _, f := range g.Faults {
			if !f.simple() {
				return false
			}
		}
	}
	all, err := json.Marshal(s)
	some, err2 := json.Marshal(first)
	return err == nil && err2 == nil && bytes.Equal(all, some)
}

// content is the content of a slot.
type content struct {
	Format  int
	Seed    string // random; UUIDs derive from it, so they differ between nodes
	State   State
	Profile string // YAML
}

func (c content) encode() ([]byte, error) {
	c.Format = format
	if c.State.isFirst() {
		c.Format = 1
	}
	out, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode state: %w", err)
	}
	return out, nil
}

func decodeContent(path string, b []byte) (content, error) {
	var head struct{ Format int }
	if err := json.Unmarshal(b, &head); err != nil {
		return content{}, fmt.Errorf("read %s: %w", path, err)
	}
	if head.Format < 1 || head.Format > format {
		return content{}, fmt.Errorf("read %s: the state has format %d, this program knows 1 to %d; use the program "+
			"that wrote it, or remove the file to make new GPUs", path, head.Format, format)
	}
	var c content
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return content{}, fmt.Errorf("read %s: %w", path, err)
	}
	return c, nil
}

// fits checks that the state belongs to a machine of the profile.
func (s State) fits(p hwprofile.Profile) error {
	if len(s.GPUs) < len(p.GPUs) {
		return fmt.Errorf("state of %d GPUs, the profile has %d", len(s.GPUs), len(p.GPUs))
	}
	for i, g := range s.GPUs {
		if g.Added == nil != (i < len(p.GPUs)) || g.Added != nil && (g.Added.Like < 0 || g.Added.Like >= len(p.GPUs)) {
			return fmt.Errorf("GPU %d of the state is neither one of the %d of the profile nor like one of them", i,
				len(p.GPUs))
		}
	}
	return nil
}

// newContent is the state of a new machine.
func newContent(p hwprofile.Profile) content {
	c := content{Seed: rand.Text(), Profile: p.YAML()}
	for _, g := range p.GPUs {
		c.State.GPUs = append(c.State.GPUs, factoryState(g))
	}
	return c
}

// factoryState is the state of a GPU with nothing changed.
func factoryState(g hwprofile.GPU) GPUState {
	mode, _ := g.Calls.GetComputeMode.Get()
	memory, _ := g.Calls.GetMemoryInfo.Get()
	return GPUState{ComputeMode: mode, MemoryUsed: memory.Used}
}

func (s State) clone() State {
	out := s
	out.GPUs = make([]GPUState, len(s.GPUs))
	for i, g := range s.GPUs {
		g.Faults, g.Delays, g.Processes = maps.Clone(g.Faults), maps.Clone(g.Delays), slices.Clone(g.Processes)
		g.VGPUs = slices.Clone(g.VGPUs)
		if g.MIG != nil {
			g.MIG = &MIG{Mode: g.MIG.Mode, Instances: cloneInstances(g.MIG.Instances)}
		}
		out.GPUs[i] = g
	}
	return out
}

// uuidFor returns the UUID of the GPU at an address. It depends on the node's seed and the address only.
func uuidFor(seed string, at hwprofile.Address) string {
	b := sha256.Sum256([]byte(seed + " " + at.String()))
	b[6] = b[6]&0x0f | 0x40 // a random UUID, RFC 9562 version 4
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// serialFor returns the serial number of the GPU at an address: 13 digits, as on NVIDIA's boards. It depends on the
// node's seed and the address only.
func serialFor(seed string, at hwprofile.Address) string {
	b := sha256.Sum256([]byte(seed + " serial " + at.String()))
	return fmt.Sprintf("165%010d", binary.BigEndian.Uint64(b[:])%1e10)
}
