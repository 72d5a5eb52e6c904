// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// mpsName and the UUID of a device are the file that its MPS daemon holds a shared lock of.
const mpsName = "mps.lock-"

// ServeMPS records that this process serves the clients of MPS on the device, until release is called. When the process
// is killed, its clients no longer use the device, as on real hardware.
func (n *Node) ServeMPS(uuid string) (release func()) {
	// Write the state without the clients of a daemon that was killed, or they would come back with this one.
	_ = n.Change(func(*State) error { return nil })
	return n.use(mpsName + uuid)
}

// served reports whether the MPS daemon of the device runs. It does if nobody has ever called ServeMPS: earlier daemons
// did not.
func (n *Node) served(uuid string) bool {
	// One process looks at a time, or two would see the lock of each other. The directory may be read only.
	dir, err := os.Open(n.dir)
	if err != nil {
		return true
	}
	defer dir.Close() // after the other lock
	if err := flock(dir, unix.LOCK_EX); err != nil {
		return true
	}
	f, err := os.Open(filepath.Join(n.dir, mpsName+uuid))
	if err != nil {
		return true
	}
	defer f.Close() // releases the lock
	return errors.Is(flock(f, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// clientsOf returns the UUIDs of the devices that have clients of MPS.
func clientsOf(v *View) []string {
	var out []string
	add := func(uuid string, processes []Process) {
		if slices.ContainsFunc(processes, func(p Process) bool { return !p.placed() }) {
			out = append(out, uuid)
		}
	}
	for _, c := range v.GPUs {
		add(c.UUID, c.State.Processes)
		for _, p := range c.Partitions() {
			add(p.Compute.UUID, p.Compute.Processes)
		}
	}
	return out
}

// hasOrphans reports whether the view has clients of a daemon that was killed. The caller holds n.mu.
func (n *Node) hasOrphans() bool {
	return n.dir != "" && slices.ContainsFunc(n.clients, func(uuid string) bool { return !n.served(uuid) })
}

// removeOrphans removes those clients from the state.
func (n *Node) removeOrphans(v *View, s *State) {
	for _, uuid := range n.clients {
		if d, err := v.Device(uuid); err == nil && !n.served(uuid) {
			s.GPUs[d.entry].setProcesses(d, withPlaced(d.Processes(), nil))
		}
	}
}
