// SPDX-License-Identifier: Apache-2.0

// Package smi is the simulated nvidia-smi: what the real one prints about the GPUs that it can reach.
package smi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
)

// Machine is where the program looks for its library and for device nodes.
type Machine struct {
	Roots []string // searched in this order for a library; the device nodes are those of the root that has one
}

// Here is the machine or container the program runs in. A program that lies in the driver root of the host, as the real one
// does, works with that root, too.
func Here() Machine {
	roots := []string{"/"}
	if self, err := os.Readlink("/proc/self/exe"); err == nil {
		if root, ok := strings.CutSuffix(filepath.Dir(self), "/usr/bin"); ok && root != "" {
			roots = []string{root, "/"}
		}
	}
	return Machine{Roots: roots}
}

// libraryDirs are where distributions have the driver's libraries.
var libraryDirs = []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu", "lib64",
	"lib", "usr/local/lib", "usr/local/nvidia/lib64", "usr/local/nvidia/lib"}

// errNoLibrary means that there is no management library.
var errNoLibrary = errors.New("no libnvidia-ml.so")

// look finds the library and returns what it says and the root it is in.
func (m Machine) look() (*node.View, string, error) {
	for _, root := range m.Roots {
		for _, dir := range libraryDirs {
			found, err := node.FindLibraries(filepath.Join(root, dir))
			if err != nil || len(found) == 0 {
				continue
			}
			n, err := node.AttachLibrary(found[0])
			if err != nil {
				return nil, "", err
			}
			v, err := n.View()
			return v, root, err
		}
	}
	return nil, "", errNoLibrary
}

// administered are the node that can be changed from here and its GPUs, those named by ids or all. That is so on the node itself,
// where the root is the driver root in the node's directory. In a container there is but the library, read-only: then n is nil,
// and the GPUs are those that the container reaches. A program that may change the node's files may change its GPUs, so on the
// node no device node is opened: a plugin of simulated GPUs has no right to, where that of real ones is privileged.
func administered(v *node.View, root, ids string) (n *node.Node, gpus []gpu, err error) {
	if !onNode(root) {
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

// onNode says whether the root is the driver root in a node's directory.
func onNode(root string) bool { return filepath.Base(root) == "root" }

// Reachable are what a program can use here: the GPUs whose device nodes it can open, and of those in MIG mode the partitions whose
// device nodes it can open. A CUDA program on a real machine is shown the first partition only.
func (m Machine) Reachable() ([]node.Device, error) {
	v, root, err := m.look()
	if err != nil {
		return nil, err
	}
	var out []node.Device
	for _, g := range reachable(v, root) {
		if !g.Partitioned() {
			out = append(out, node.Device{Card: g.Card})
		}
		for _, p := range g.partitions {
			out = append(out, node.Device{Card: g.Card, Partition: &p})
		}
	}
	return out, nil
}

// gpu is a GPU that the program can reach. Index is its place among those.
type gpu struct {
	node.Card
	Index      int
	partitions []node.Partition // those that the program can reach
}

// reachable are the GPUs whose device nodes can be opened: there is one, it is that of the GPU, and this process is allowed
// to use it. The kernel answers ENXIO then, because behind the number there is no driver.
func reachable(v *node.View, root string) []gpu {
	var out []gpu
	for _, c := range v.GPUs {
		if v.Major != 0 && reaches(filepath.Join(root, "dev", c.DeviceNode()), v.Major, c.Minor) {
			out = append(out, gpu{c, len(out), reachablePartitions(v, root, c)})
		}
	}
	return out
}

// reachablePartitions are the partitions of the GPU whose device nodes can be opened, that of the GPU instance and that of the compute
// instance. On the node that is all of them, as for an administrator: the runtime makes these nodes in containers only.
func reachablePartitions(v *node.View, root string, c node.Card) []node.Partition {
	var out []node.Partition
	for _, p := range c.Partitions() {
		all := true
		for _, minor := range c.Capabilities(p) {
			all = all && (onNode(root) || reaches(filepath.Join(root, "dev", node.CapabilityNode(minor)), v.Major, minor))
		}
		if all {
			out = append(out, p)
		}
	}
	return out
}

func reaches(path string, major, minor int) bool {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR ||
		uint64(st.Rdev) != unix.Mkdev(uint32(major), uint32(minor)) { //nolint:unconvert // differs between architectures
		return false
	}
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err == nil {
		f.Close()
		return false // there is a driver behind it, so it is not the simulated one
	}
	return errors.Is(err, syscall.ENXIO)
}

// choose are the GPUs that the option -i names: by index, UUID, serial number or PCI address, several of them between commas.
func choose(all []gpu, ids string) ([]gpu, error) {
	if ids == "" {
		return all, nil
	}
	var out []gpu
	for _, id := range strings.Split(ids, ",") {
		found := false
		for _, g := range all {
			if id == fmt.Sprint(g.Index) || id == g.UUID || id == g.Serial || strings.EqualFold(strings.TrimPrefix(id, "0000"), g.PCI.Address.String()) ||
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

// errNotFound means that none of the GPUs is the one that was asked for.
var errNotFound = errors.New("no such GPU")

// ask is the answer to a call, with the faults that somebody injected. The program can only read the state, so it counts no calls.
func ask[T any](g gpu, call string, a node.Answer[T]) (T, node.Error) {
	time.Sleep(g.Delay(call))
	if e := g.Fault(call); e != "" {
		var zero T
		return zero, e
	}
	return a.Get()
}
