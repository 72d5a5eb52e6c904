// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// OnNode reports whether the root is the driver root in a node's directory.
func OnNode(root string) bool { return filepath.Base(root) == "root" }

// Reachable returns what a program with this root can use: the GPUs whose device nodes it can open, and of their
// partitions those of which it can open the nodes of the GPU instance and of the compute instance. On the node itself,
// these are all partitions, as for an administrator: the runtime creates their nodes in containers only.
func (v *View) Reachable(root string) *View {
	out := *v
	out.GPUs = nil
	for _, c := range v.GPUs {
		if v.Major == 0 || !reaches(filepath.Join(root, "dev", c.DeviceNode()), v.Major, c.Minor) {
			continue
		}
		c.Index = len(out.GPUs)
		if !OnNode(root) {
			m := c.MIG()
			m.Instances = cloneInstances(m.Instances)
			for i := range m.Instances {
				g := &m.Instances[i]
				g.Compute = slices.DeleteFunc(g.Compute, func(ci ComputeInstance) bool {
					return !v.reachesAll(root, c.Capabilities(Partition{Instance: *g, Compute: ci}))
				})
			}
			c.State.MIG = &m
		}
		out.GPUs = append(out.GPUs, c)
	}
	return &out
}

func (v *View) reachesAll(root string, minors [2]int) bool {
	for _, minor := range minors {
		if !reaches(filepath.Join(root, "dev", CapabilityNode(minor)), v.Major, minor) {
			return false
		}
	}
	return true
}

// reaches reports whether the node exists, has these numbers, and this process may use it. Opening it returns ENXIO,
// because no driver has the number.
func reaches(path string, major, minor int) bool {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR ||
		uint64(st.Rdev) != unix.Mkdev(uint32(major), uint32(minor)) { //nolint:unconvert // differs between architectures
		return false
	}
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err == nil {
		f.Close()
		return false // a driver answers, so it is not a simulated GPU
	}
	return errors.Is(err, syscall.ENXIO)
}
