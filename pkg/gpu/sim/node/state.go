// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
)

// State is what can change on a node. All else follows from its profile.
type State struct {
	Major int // of the device nodes; 0 until they have been made
	GPUs  []GPUState
}

// GPUState is what can change on a GPU.
type GPUState struct {
	ComputeMode ComputeMode
	MemoryUsed  uint64           // bytes
	Faults      map[string]Error `json:",omitempty"` // by call; AllCalls stands for every call
}

// AllCalls in place of a call's name means every call of the GPU.
const AllCalls = "all"

// format is the version of the layout of content. A reader refuses any other.
const format = 1

// content is what a slot holds.
type content struct {
	Format  int
	Seed    string // random; the UUIDs follow from it, so that no two nodes have the same
	State   State
	Profile string // YAML
}

func (c content) encode() ([]byte, error) {
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
	if head.Format != format {
		return content{}, fmt.Errorf("read %s: the state has format %d, this program knows %d; use the program that wrote it, "+
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

// newContent is the state of a machine that has just been built.
func newContent(p Profile) content {
	var seed [16]byte
	if _, err := rand.Read(seed[:]); err != nil {
		panic(err) // it never fails on Linux
	}
	c := content{Format: format, Seed: hex.EncodeToString(seed[:]), Profile: p.source}
	for _, g := range p.GPUs {
		mode, _ := g.Calls.GetComputeMode.Get()
		memory, _ := g.Calls.GetMemoryInfo.Get()
		c.State.GPUs = append(c.State.GPUs, GPUState{ComputeMode: mode, MemoryUsed: memory.Used})
	}
	return c
}

func (s State) clone() State {
	out := s
	out.GPUs = make([]GPUState, len(s.GPUs))
	for i, g := range s.GPUs {
		g.Faults = maps.Clone(g.Faults)
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
