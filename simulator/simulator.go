// SPDX-License-Identifier: Apache-2.0

// Package simulator simulates a machine with GPUs. It implements go-nvml's nvml.Interface over a node on disk that
// several processes share (package node), and lays out a driver root. The driver uses both in place of the NVML library
// and the root of a real driver; the rest of its code is the same.
package simulator

import (
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// Profile describes a machine to simulate.
type Profile = hwprofile.Profile

// Address is an address on the PCI bus.
type Address = hwprofile.Address

// DefaultDir is where programs look for a node.
const DefaultDir = node.DefaultDir

// Errors of Open and Attach.
var (
	// ErrNoNode means that the directory has no simulated node.
	ErrNoNode = node.ErrNoNode
	// ErrCorrupt means that the node has no intact state. The message names the file and the remedy.
	ErrCorrupt = node.ErrCorrupt
)

// ParseProfile parses a profile strictly: the error has the line and path of every mistake.
func ParseProfile(text []byte) (Profile, error) { return hwprofile.ParseProfile(text) }

// BuiltIn returns the built-in profile with that name.
func BuiltIn(name string) (Profile, error) { return node.BuiltIn(name) }

// Profiles returns the names of the built-in profiles, sorted.
func Profiles() []string { return node.Names() }

// Node is a simulated machine. Its state is on disk; see node.Node for what can change it.
type Node struct {
	*node.Node
	library func() *library
}

// Open returns the node in dir, and creates it from the profile if there is none. A node of another profile is rebuilt,
// as if the machine had been replaced. LayOut creates the device nodes.
func Open(dir string, p Profile) (*Node, error) {
	n, err := node.Open(dir, p)
	if err != nil {
		return nil, err
	}
	return wrap(n, ""), nil
}

// Attach returns the node in dir, or ErrNoNode if there is none.
func Attach(dir string) (*Node, error) {
	n, err := node.Attach(dir)
	if err != nil {
		return nil, err
	}
	return wrap(n, ""), nil
}

// Within returns the node for programs with this root, as those of a container: the management library has only what
// they can reach.
func Within(n *node.Node, root string) *Node { return wrap(n, root) }

func wrap(n *node.Node, root string) *Node {
	return &Node{Node: n, library: sync.OnceValue(func() *library { return newLibrary(n, root) })}
}

// NVML returns the management library of the node, always the same value. It is safe for concurrent use. Each call
// answers from the current state on disk.
//
// The handlers that GetGpuFabricInfoV, GetGpuInstanceProfileInfoV and the like return cannot be simulated: their V1, V2
// and V3 call the C library and end the process. So LookupSymbol reports these functions as missing. GetGpuFabricInfo
// and GetGpuFabricInfo_v4 exist, and every GPU has a method GpuInstanceProfileInfo_v3(profile int).
func (n *Node) NVML() nvml.Interface { return n.library() }
