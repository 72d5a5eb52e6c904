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
)

// State is what can change on a node. All else follows from its profile.
type State struct {
	Major int        // of the device nodes; 0 until they have been made
	GPUs  []GPUState // those of the profile in its order, then those that were added later; an entry never goes away
	Crash *Crash     `json:",omitempty"` // what has been ordered; nil: nothing
	Steps *Steps     `json:",omitempty"` // what has been recorded; nil: they are not
}

// GPUState is what can change on a GPU.
type GPUState struct {
	ComputeMode ComputeMode
	MemoryUsed  uint64           // bytes
	TimeSlice   TimeSlice        `json:",omitempty"`
	Processes   []Process        `json:",omitempty"` // that hold memory, by their daemon of MPS; beside MemoryUsed
	MIG         *MIG             `json:",omitempty"` // nil: as the profile has it
	MPS         *MPSFault        `json:",omitempty"` // what is wrong with daemons of MPS on it; nil: nothing
	Faults      map[string]Fault `json:",omitempty"` // calls that answer an error; AllCalls stands for every call
	Delays      map[string]Fault `json:",omitempty"` // calls that take long; likewise
	Unplugged   bool             `json:",omitempty"` // off the bus: NVML counts it and says nothing else about it
	Removed     bool             `json:",omitempty"` // gone for good: NVML does not count it
	Added       *Added           `json:",omitempty"` // what the profile does not say; nil for a GPU of the profile
}

// AllCalls in place of a call's name means every call of the GPU.
const AllCalls = "all"

// format is the newest version of the layout of content that this program knows. A state is written in the oldest format that
// can hold it: an nvidia-smi in a container that was started before an update goes on reading it, and so does the program that
// a downgrade brings back. Format 1 has neither delays nor faults that count, every GPU of the profile in its place, and no
// orders about steps; format 2 has no time slices, and nothing of MPS; format 3 has no MIG, and
// no processes that somebody put there.
const format = 4

// oldest is the oldest format that can hold the state.
func (s State) oldest() int {
	if slices.ContainsFunc(s.GPUs, func(g GPUState) bool { return g.MIG != nil || slices.ContainsFunc(g.Processes, Process.placed) }) {
		return 4
	}
	if slices.ContainsFunc(s.GPUs, func(g GPUState) bool { return g.TimeSlice != 0 || len(g.Processes) > 0 || g.MPS != nil }) {
		return 3
	}
	if s.Crash != nil || s.Steps != nil || slices.ContainsFunc(s.GPUs, func(g GPUState) bool {
		return len(g.Delays) > 0 || g.Unplugged || g.Removed || g.Added != nil ||
			slices.ContainsFunc(slices.Collect(maps.Values(g.Faults)), func(f Fault) bool { return !f.simple() })
	}) {
		return 2
	}
	return 1
}

// content is what a slot holds.
type content struct {
	Format  int
	Seed    string // random; the UUIDs follow from it, so that no two nodes have the same
	State   State
	Profile string // YAML
}

func (c content) encode() ([]byte, error) {
	c.Format = c.State.oldest()
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
		return content{}, fmt.Errorf("read %s: the state has format %d, this program knows 1 to %d; use the program that wrote it, "+
			"or remove the file to make new GPUs", path, head.Format, format)
	}
	var c content
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return content{}, fmt.Errorf("read %s: %w", path, err)
	}
	return c, nil
}

// fits says whether the state can be one of a machine of the profile.
func (s State) fits(p Profile) error {
	if len(s.GPUs) < len(p.GPUs) {
		return fmt.Errorf("state of %d GPUs, the profile has %d", len(s.GPUs), len(p.GPUs))
	}
	for i, g := range s.GPUs {
		if g.Added == nil != (i < len(p.GPUs)) || g.Added != nil && (g.Added.Like < 0 || g.Added.Like >= len(p.GPUs)) {
			return fmt.Errorf("GPU %d of the state is neither one of the %d of the profile nor like one of them", i, len(p.GPUs))
		}
	}
	return nil
}

// newContent is the state of a machine that has just been built.
func newContent(p Profile) content {
	c := content{Seed: rand.Text(), Profile: p.source}
	for _, g := range p.GPUs {
		c.State.GPUs = append(c.State.GPUs, g.factory())
	}
	return c
}

// factory is the state of a GPU that has just been put in.
func (g GPU) factory() GPUState {
	mode, _ := g.Calls.GetComputeMode.Get()
	memory, _ := g.Calls.GetMemoryInfo.Get()
	return GPUState{ComputeMode: mode, MemoryUsed: memory.Used}
}

func (s State) clone() State {
	out := s
	out.GPUs = make([]GPUState, len(s.GPUs))
	for i, g := range s.GPUs {
		g.Faults, g.Delays, g.Processes = maps.Clone(g.Faults), maps.Clone(g.Delays), slices.Clone(g.Processes)
		if g.MIG != nil {
			g.MIG = &MIG{Mode: g.MIG.Mode, Instances: cloneInstances(g.MIG.Instances)}
		}
		out.GPUs[i] = g
	}
	return out
}

// uuidFor is the UUID of the GPU at an address of the node with that seed: always the same.
func uuidFor(seed string, at Address) string {
	b := sha256.Sum256([]byte(seed + " " + at.String()))
	b[6] = b[6]&0x0f | 0x40 // a random UUID, RFC 9562 version 4
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// serialFor is the serial number of the GPU at an address of the node with that seed, 13 digits as on NVIDIA's boards.
func serialFor(seed string, at Address) string {
	b := sha256.Sum256([]byte(seed + " serial " + at.String()))
	return fmt.Sprintf("165%010d", binary.BigEndian.Uint64(b[:])%1e10)
}
