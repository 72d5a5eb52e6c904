// SPDX-License-Identifier: Apache-2.0

// Package sim is a machine full of GPUs that do not exist: go-nvml's nvml.Interface over a node on disk that several
// processes share (package node), and the driver root that goes with it. The driver uses it in place of the NVML library
// and of the root of an NVIDIA driver, and runs the same code from there on.
package sim

import (
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
)

// Profile is a machine that can be simulated.
type Profile = node.Profile

// Address is a place on the PCI bus.
type Address = node.Address

// Errors of Open and Attach.
var (
	// ErrNoNode means that no simulated node has been made in the directory.
	ErrNoNode = node.ErrNoNode
	// ErrCorrupt means that the state of the node is not whole. The message names the file and the remedy.
	ErrCorrupt = node.ErrCorrupt
)

// ParseProfile reads a profile from YAML, strictly: the error has the line and path of every mistake.
func ParseProfile(text []byte) (Profile, error) { return node.ParseProfile(text) }

// BuiltIn is the built-in profile of that name.
func BuiltIn(name string) (Profile, error) { return node.BuiltIn(name) }

// Profiles are the names of the built-in profiles, in order.
func Profiles() []string { return node.Names() }

// Node is a simulated machine. Everything it is lives on disk; see node.Node for what can be done to it.
type Node struct {
	*node.Node
	library func() *library
}

// Open returns the node that lives in dir. When there is none it is made from the profile; when the one that is there was made
// from another profile it is rebuilt, as if somebody had swapped the machine. It makes no device nodes: that is LayOut's.
func Open(dir string, p Profile) (*Node, error) {
	n, err := node.Open(dir, p)
	if err != nil {
		return nil, err
	}
	return wrap(n), nil
}

// Attach returns the node that lives in dir. There must be one, else the error is ErrNoNode.
func Attach(dir string) (*Node, error) {
	n, err := node.Attach(dir)
	if err != nil {
		return nil, err
	}
	return wrap(n), nil
}

func wrap(n *node.Node) *Node {
	return &Node{Node: n, library: sync.OnceValue(func() *library { return newLibrary(n) })}
}

// NVML is the management library of the node: always the same value, for use by several goroutines. Each call answers from
// what is on disk at that moment.
//
// One thing cannot be simulated: the handlers that GetGpuFabricInfoV, GetGpuInstanceProfileInfoV and the like return go straight to
// the C library, so that calling their V1, V2 or V3 ends the process. LookupSymbol says that these functions do not exist;
// GetGpuFabricInfo and GetGpuFabricInfo_v4 do, and every GPU has a method GpuInstanceProfileInfo_v3(profile int).
func (n *Node) NVML() nvml.Interface { return n.library() }

// OnChange lets every call to NVML that changes how a GPU is partitioned go through f: SetMigMode, CreateGpuInstance(WithPlacement),
// GpuInstanceCreateComputeInstance, ComputeInstanceDestroy and GpuInstanceDestroy. f gets the name of the call and what does it, on the
// goroutine of the caller, and its result is that of the call. It is for the one who makes the library, before anybody uses it.
func (n *Node) OnChange(f func(call string, do func() nvml.Return) nvml.Return) {
	n.library().onChange = f
}
