// SPDX-License-Identifier: Apache-2.0

// Package smi is the simulated nvidia-smi. It prints what the real one prints about the GPUs that it can reach.
package smi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// Machine is where the program looks for its library and device nodes.
type Machine struct {
	Roots []string // searched in order for a library; its root also has the device nodes
}

// Here is the machine or container that the program runs in. Like the real program, one in the driver root of the host
// also uses that root.
func Here() Machine {
	roots := []string{"/"}
	if self, err := os.Readlink("/proc/self/exe"); err == nil {
		if root, ok := strings.CutSuffix(filepath.Dir(self), "/usr/bin"); ok && root != "" {
			roots = []string{root, "/"}
		}
	}
	return Machine{Roots: roots}
}

// libraryDirs are where distributions install the driver's libraries.
var libraryDirs = []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib",
	"lib/x86_64-linux-gnu", "lib64",
	"lib", "usr/local/lib", "usr/local/nvidia/lib64", "usr/local/nvidia/lib"}

// errNoLibrary means that no management library is found.
var errNoLibrary = errors.New("no libnvidia-ml.so")

// errNoDriver means that there is a library, but no driver is loaded.
var errNoDriver = errors.New("the driver is not loaded")

// Node returns the node whose library is found, to be read only, and its root.
func (m Machine) Node() (*node.Node, string, error) {
	for _, root := range m.Roots {
		for _, dir := range libraryDirs {
			found, err := node.FindLibraries(filepath.Join(root, dir))
			if err != nil || len(found) == 0 {
				continue
			}
			n, err := node.AttachLibrary(found[0])
			return n, root, err
		}
	}
	return nil, "", errNoLibrary
}

// findLibrary finds the library and returns its view and root.
func (m Machine) findLibrary() (*node.View, string, error) {
	n, root, err := m.Node()
	if err != nil {
		return nil, "", err
	}
	v, err := n.View()
	if err == nil && v.Unloaded {
		err = errNoDriver
	}
	return v, root, err
}

// administered returns the node if it can be changed from here, and its GPUs: those in ids, or all. On the node itself,
// the root is the driver root in the node's directory. There, no device nodes are opened: write access to the node's
// files is enough, and a plugin of simulated GPUs has no access to device nodes. In a container the library is
// read-only: then n is nil, and the GPUs are those that the container can reach.
func administered(v *node.View, root, ids string) (n *node.Node, gpus []gpu, err error) {
	if !node.OnNode(root) {
		gpus, err := choose(reachable(v, root), ids)
		return nil, gpus, err
	}
	if n, err = node.Attach(filepath.Dir(root)); err != nil {
		return nil, nil, err
	}
	for _, c := range v.GPUs {
		gpus = append(gpus, gpu{c, len(gpus), c.Partitions()})
	}
	gpus, err = choose(gpus, ids)
	return n, gpus, err
}

// Reachable returns what a program can use here: the GPUs whose device nodes it can open, or their partitions in MIG
// mode. On a real machine, a CUDA program sees only the first partition.
func (m Machine) Reachable() ([]node.Device, error) {
	v, root, err := m.findLibrary()
	if err != nil {
		return nil, err
	}
	var out []node.Device
	for _, g := range reachable(v, root) {
		if !g.Partitioned() {
			out = append(out, node.Device{GPU: g.GPU})
		}
		for _, p := range g.partitions {
			out = append(out, node.Device{GPU: g.GPU, Partition: &p})
		}
	}
	return out, nil
}

// gpu is a GPU that the program can reach. Index is its index among those.
type gpu struct {
	node.GPU
	Index      int
	partitions []node.Partition // those that the program can reach
}

// reachable returns the GPUs and partitions of the view that a program with this root can use.
func reachable(v *node.View, root string) []gpu {
	var out []gpu
	for _, c := range v.Reachable(root).GPUs {
		out = append(out, gpu{c, c.Index, c.Partitions()})
	}
	return out
}

// choose returns the GPUs of the option -i: indexes, UUIDs, serial numbers or PCI addresses, separated by commas.
func choose(all []gpu, ids string) ([]gpu, error) {
	if ids == "" {
		return all, nil
	}
	var out []gpu
	for _, id := range strings.Split(ids, ",") {
		found := false
		for _, g := range all {
			if id == fmt.Sprint(g.Index) || id == g.UUID || id == g.Serial ||
				strings.EqualFold(strings.TrimPrefix(id, "0000"), g.PCI.Address.String()) ||
				strings.EqualFold(id, g.PCI.Address.String()) {
				out, found = append(out, g), true
			}
		}
		if !found {
			return nil, errNotFound
		}
	}
	return out, nil
}

// errNotFound means that no GPU matches.
var errNotFound = errors.New("no such GPU")

// ask returns the answer to a call with injected faults. The program cannot write the state, so it counts no calls.
func ask[T any](g gpu, call string, a hwprofile.Answer[T]) (T, hwprofile.Error) {
	time.Sleep(g.Delay(call))
	if e := g.Fault(call); e != "" {
		var zero T
		return zero, e
	}
	return a.Get()
}
