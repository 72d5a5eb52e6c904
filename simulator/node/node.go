// SPDX-License-Identifier: Apache-2.0

// Package node simulates a machine with GPUs. A profile says what the GPUs are, and a state what has changed since.
// Both are in one file, which several processes read and change at the same time. The node prints itself as text.
//
// It needs neither cgo nor go-nvml, so that the nvidia-smi inside containers can be a static program.
package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// ErrNoNode means that the directory has no simulated node.
var ErrNoNode = errors.New("no simulated node here")

// Node is a simulated machine. It only caches what is on disk: every method checks the disk first. It is safe for
// concurrent use by goroutines, and its directory by processes.
type Node struct {
	dir string // "" if only the library is known, as in a container

	mu      sync.Mutex
	library string // the state file; "" before it is found in dir
	have    identity
	last    *View
	clients []string          // the UUIDs of devices of last that have clients of MPS
	profile hwprofile.Profile // of last
	// the file that have identifies, kept open to check for changes; nil if there is none
	file *os.File
}

// DefaultDir is where programs look for a node.
const DefaultDir = "/var/lib/gpu-dra-driver/sim"

// libraryDir is the directory of the libraries in the driver root; libraryName begins the name of the state file there.
const (
	libraryDir  = "usr/lib/x86_64-linux-gnu"
	libraryName = "libnvidia-ml.so."
)

// DriverRoot is the simulated driver root of the node in dir.
func DriverRoot(dir string) string { return filepath.Join(dir, "root") }

// LibraryDir is the directory with the libraries of the simulated driver.
func LibraryDir(dir string) string { return filepath.Join(DriverRoot(dir), libraryDir) }

// LibraryPath is the path of the state file of the node in dir, which has that driver version.
func LibraryPath(dir, driver string) string {
	return filepath.Join(LibraryDir(dir), libraryName+driver)
}

// Open returns the node in dir, and creates it from the profile if there is none. A node of another profile is rebuilt,
// as if the machine had been replaced: new GPUs, new UUIDs, no faults. A corrupt state is an error (ErrCorrupt) and is
// never rebuilt.
func Open(dir string, p hwprofile.Profile) (*Node, error) {
	if p.YAML() == "" {
		return nil, fmt.Errorf("open simulated node %s: the profile was not read from YAML", dir)
	}
	if err := os.MkdirAll(filepath.Dir(LibraryPath(dir, p.Driver())), 0o755); err != nil {
		return nil, fmt.Errorf("open simulated node %s: %w", dir, err)
	}
	n := &Node{dir: dir}
	if err := Locked(dir, stateLock, func() error { return n.ensureProfile(p) }); err != nil {
		return nil, fmt.Errorf("open simulated node %s: %w", dir, err)
	}
	return n, nil
}

// ensureProfile creates or rebuilds the node if it is not one of the profile. The caller holds the lock.
func (n *Node) ensureProfile(p hwprofile.Profile) error {
	path, err := findLibrary(n.dir)
	if errors.Is(err, ErrNoNode) {
		return n.create(p, newContent(p))
	}
	if err != nil {
		return err
	}
	s, _, err := load(path, identity{})
	if err != nil {
		return err
	}
	old, err := decodeContent(path, s.content)
	if err != nil {
		return err
	}
	is, err := hwprofile.ParseProfile([]byte(old.Profile))
	if err == nil && is.Same(p) {
		return nil
	}
	next := newContent(p)
	next.State.Major = old.State.Major
	if path != LibraryPath(n.dir, p.Driver()) { // another driver version: an upgrade removes the old library
		if err := os.Remove(path); err != nil {
			return err
		}
		return n.create(p, next)
	}
	b, err := next.encode()
	if err != nil {
		return err
	}
	return replace(path, s, b)
}

func (n *Node) create(p hwprofile.Profile, c content) error {
	b, err := c.encode()
	if err != nil {
		return err
	}
	return create(LibraryPath(n.dir, p.Driver()), b)
}

// Attach returns the node in dir, or ErrNoNode if there is none.
func Attach(dir string) (*Node, error) {
	n := &Node{dir: dir}
	if _, err := n.View(); err != nil {
		return nil, fmt.Errorf("attach to simulated node %s: %w", dir, err)
	}
	return n, nil
}

// AttachLibrary returns the node whose state file is at the path. It is read-only.
func AttachLibrary(path string) (*Node, error) {
	n := &Node{library: path}
	if _, err := n.View(); err != nil {
		return nil, fmt.Errorf("attach to simulated node %s: %w", path, err)
	}
	return n, nil
}

// Dir is the directory of the node.
func (n *Node) Dir() string { return n.dir }

// DriverRoot is the simulated driver root.
func (n *Node) DriverRoot() string { return DriverRoot(n.dir) }

// Proc is the directory for what the driver shows in /proc: driver/nvidia-caps/mig-minors and devices.
func (n *Node) Proc() string { return filepath.Join(n.DriverRoot(), "proc") }

func findLibrary(dir string) (string, error) {
	found, err := FindLibraries(LibraryDir(dir))
	if err != nil {
		return "", err
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%w: %s", ErrNoNode, dir)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("more than one state: %q; remove all but the right one", found)
}

// FindLibraries returns the paths of the simulated management libraries in a directory, sorted.
func FindLibraries(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		version, isLibrary := strings.CutPrefix(e.Name(), libraryName)
		if isLibrary && hwprofile.IsDriverVersion(version) && e.Type().IsRegular() {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}

// View returns the current state of the node. Programs call it hundreds of times to enumerate GPUs, so without changes
// it only checks the sequence numbers on disk.
func (n *Node) View() (*View, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unchanged() && !n.hasOrphans() {
		return n.last, nil
	}
	v, _, err := n.read()
	if err == nil {
		n.keepOpen()
	}
	return v, err
}

// unchanged reports whether the last view is still current, false when in doubt. The caller holds n.mu.
func (n *Node) unchanged() bool {
	var st unix.Stat_t
	if n.file == nil || unix.Fstat(int(n.file.Fd()), &st) != nil || st.Nlink == 0 { // another file has its name
		return false
	}
	newest := uint64(0)
	for i := range 2 {
		var sequence [8]byte
		if k, err := unix.Pread(int(n.file.Fd()), sequence[:], offset(i)); err != nil || k != len(sequence) {
			return false
		}
		newest = max(newest, binary.LittleEndian.Uint64(sequence[:]))
	}
	return newest == n.have.sequence
}

// keepOpen opens the file that was just read. The caller holds n.mu.
func (n *Node) keepOpen() {
	if n.file != nil {
		_ = n.file.Close()
		n.file = nil
	}
	f, err := os.Open(n.library)
	if err != nil {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || n.have.device != uint64(st.Dev) || n.have.inode != st.Ino { //nolint:unconvert // as in load
		_ = f.Close() // it has been replaced since
		return
	}
	n.file = f
}

// Reopen makes the next view one of the library that has the name now. After another driver root was mounted over the
// one before, the library of before does not change any more, and still has its name there.
func (n *Node) Reopen() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.file != nil {
		_ = n.file.Close()
		n.file = nil
	}
}

// locate loads the state from its last path, or searches for it if it is gone: after a driver update the library has
// another name.
func (n *Node) locate() (s slot, id identity, err error) {
	if n.library != "" {
		if s, id, err = load(n.library, n.have); n.dir == "" || !errors.Is(err, fs.ErrNotExist) {
			return s, id, err
		}
	}
	if n.library, err = findLibrary(n.dir); err != nil {
		return slot{}, identity{}, err
	}
	return load(n.library, identity{})
}

// read returns the node as it is on disk, without clients of daemons that were killed. The caller holds n.mu.
func (n *Node) read() (v *View, s slot, err error) {
	if v, s, err = n.readDisk(); err != nil || !n.hasOrphans() {
		return v, s, err
	}
	state := v.state.clone()
	n.removeOrphans(v, &state)
	n.last = newView(n.profile, content{Seed: v.seed, State: state})
	n.clients = clientsOf(n.last)
	return n.last, s, nil
}

// readDisk decodes the content only if it has changed.
func (n *Node) readDisk() (v *View, s slot, err error) {
	s, id, err := n.locate()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, slot{}, fmt.Errorf("%w: %s", ErrNoNode, n.library)
	}
	if err != nil {
		return nil, slot{}, err
	}
	if s.content == nil && n.last != nil {
		return n.last, s, nil
	}
	c, err := decodeContent(n.library, s.content)
	if err != nil {
		return nil, slot{}, err
	}
	if n.profile.YAML() != c.Profile {
		p, err := hwprofile.ParseProfile([]byte(c.Profile))
		if err != nil {
			return nil, slot{}, fmt.Errorf("read %s: %w", n.library, err)
		}
		n.profile = p
	}
	if err := c.State.fits(n.profile); err != nil {
		return nil, slot{}, fmt.Errorf("read %s: %w", n.library, err)
	}
	n.have, n.last = id, newView(n.profile, c)
	n.clients = clientsOf(n.last)
	return n.last, s, nil
}

// Change changes the state: f modifies a copy, which then replaces the state on disk atomically. If f returns an error,
// nothing changes.
func (n *Node) Change(f func(*State) error) error {
	return n.changing(func(_ *View, s slot, next content) error {
		if err := f(&next.State); err != nil {
			return err
		}
		b, err := next.encode()
		if err != nil {
			return err
		}
		return replace(n.library, s, b)
	})
}

// changing calls f with the state on disk and a copy to modify, under the lock of the node.
func (n *Node) changing(f func(v *View, s slot, next content) error) error {
	if n.dir == "" {
		return fmt.Errorf("change %s: it was attached to be read only", n.library)
	}
	return lockedBy(n.dir, stateLock, 0, func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		v, s, err := n.read()
		if err != nil {
			return err
		}
		return f(v, s, content{Seed: v.seed, State: v.state.clone(), Profile: v.Profile.YAML()})
	})
}

// ReloadDriver reloads the driver as an update does. It changes the version unless that is "", and swaps the minor
// numbers of two GPUs if swap names them. Compute modes and time slices are reset as after a reboot; partitions,
// health, faults and processes stay. An unloaded driver is loaded. The caller lays out the driver root afterwards.
func (n *Node) ReloadDriver(version string, swap []string) error {
	if version != "" && !hwprofile.IsDriverVersion(version) {
		return fmt.Errorf("driver version %q: want one such as 580.95.05", version)
	}
	if len(swap) != 0 && len(swap) != 2 {
		return fmt.Errorf("GPUs to swap %q: want two", swap)
	}
	return n.changing(func(v *View, s slot, next content) error {
		gpus := make([]GPU, len(swap))
		for i, which := range swap {
			var err error
			if gpus[i], err = v.GPU(which); err != nil {
				return err
			}
		}
		if len(gpus) == 2 {
			next.State.GPUs[gpus[0].entry].Minor = &gpus[1].Minor
			next.State.GPUs[gpus[1].entry].Minor = &gpus[0].Minor
		}
		for _, c := range v.GPUs {
			fresh := factoryState(c.GPU)
			g := &next.State.GPUs[c.entry]
			g.ComputeMode, g.TimeSlice = fresh.ComputeMode, fresh.TimeSlice
		}
		next.State.Unloaded = false
		if version != "" {
			next.State.Driver = version
		}
		b, err := next.encode()
		if err != nil {
			return err
		}
		if version == "" || version == v.Profile.Driver() {
			return replace(n.library, s, b)
		}
		if err := os.Remove(n.library); err != nil {
			return err
		}
		return create(LibraryPath(n.dir, version), b)
	})
}
