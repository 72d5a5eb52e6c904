// SPDX-License-Identifier: Apache-2.0

// Package node is a machine full of GPUs that do not exist: what they are (a profile) and what has been done to them (a
// state), kept in one file on disk that several processes read and change at the same time, and printed as text.
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
)

// ErrNoNode means that no simulated node has been made in the directory.
var ErrNoNode = errors.New("no simulated node here")

// Node is a simulated machine. It holds nothing but a cache: every method looks at the disk first.
// It may be used by several goroutines, and the same directory by several processes.
type Node struct {
	dir string // "" when only the library is at hand, as in a container

	mu      sync.Mutex
	library string // the state file; "" while it is to be looked for in dir
	have    identity
	last    *View
	profile Profile  // of last
	file    *os.File // the one that have identifies, to look whether it says something new; nil when there is none
}

// libraryDir is where the driver root has its libraries, and libraryName what the state file is called there.
const (
	libraryDir  = "usr/lib/x86_64-linux-gnu"
	libraryName = "libnvidia-ml.so."
)

// DriverRoot is the simulated driver root of the node that lives in dir.
func DriverRoot(dir string) string { return filepath.Join(dir, "root") }

// LibraryDir is where the simulated driver has its libraries.
func LibraryDir(dir string) string { return filepath.Join(DriverRoot(dir), libraryDir) }

// LibraryPath is where the state of a node with that driver lives in its directory.
func LibraryPath(dir, driver string) string {
	return filepath.Join(LibraryDir(dir), libraryName+driver)
}

// Open returns the node that lives in dir. When there is none it is made from the profile. When the one that is there was
// made from another profile it is rebuilt, as if somebody had swapped the machine: new GPUs, new UUIDs, no faults.
// A state that is corrupt is an error (ErrCorrupt), never a reason to start anew.
func Open(dir string, p Profile) (*Node, error) {
	if p.source == "" {
		return nil, fmt.Errorf("open simulated node %s: the profile was not read from YAML", dir)
	}
	if err := os.MkdirAll(filepath.Dir(LibraryPath(dir, p.Driver())), 0o755); err != nil {
		return nil, fmt.Errorf("open simulated node %s: %w", dir, err)
	}
	n := &Node{dir: dir}
	if err := locked(dir, func() error { return n.become(p) }); err != nil {
		return nil, fmt.Errorf("open simulated node %s: %w", dir, err)
	}
	return n, nil
}

// become makes sure that the node is one of the profile. The caller holds the lock.
func (n *Node) become(p Profile) error {
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
	is, err := ParseProfile([]byte(old.Profile))
	if err == nil && is.same(p) {
		return nil
	}
	next := newContent(p)
	next.State.Major = old.State.Major
	if path != LibraryPath(n.dir, p.Driver()) { // another driver version: as in an upgrade, the old library goes
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

func (n *Node) create(p Profile, c content) error {
	b, err := c.encode()
	if err != nil {
		return err
	}
	return create(LibraryPath(n.dir, p.Driver()), b)
}

// Attach returns the node that lives in dir. There must be one, else the error is ErrNoNode.
func Attach(dir string) (*Node, error) {
	n := &Node{dir: dir}
	if _, err := n.View(); err != nil {
		return nil, fmt.Errorf("attach to simulated node %s: %w", dir, err)
	}
	return n, nil
}

// AttachLibrary returns the node whose library is at the path. Such a node can be read, not changed.
func AttachLibrary(path string) (*Node, error) {
	n := &Node{library: path}
	if _, err := n.View(); err != nil {
		return nil, fmt.Errorf("attach to simulated node %s: %w", path, err)
	}
	return n, nil
}

// Dir is the directory the node lives in.
func (n *Node) Dir() string { return n.dir }

// DriverRoot is the simulated driver root.
func (n *Node) DriverRoot() string { return DriverRoot(n.dir) }

// Proc is where the node has what the driver would show in /proc: driver/nvidia-caps/mig-minors and devices.
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

// FindLibraries are the paths of the simulated management libraries in a directory, in order.
func FindLibraries(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		version, isLibrary := strings.CutPrefix(e.Name(), libraryName)
		if isLibrary && versionFormat.MatchString(version) && e.Type().IsRegular() {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}

// View is the node as it is now. A program asks for it hundreds of times to learn all about its GPUs, so when nothing has changed it
// costs no more than to see that.
func (n *Node) View() (*View, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unchanged() {
		return n.last, nil
	}
	v, _, err := n.read()
	if err == nil {
		n.keepOpen()
	}
	return v, err
}

// unchanged says whether the last view is still that of the node. When in doubt it is not. The caller holds n.mu.
func (n *Node) unchanged() bool {
	var st unix.Stat_t
	if n.file == nil || unix.Stat(n.library, &st) != nil || n.have.device != uint64(st.Dev) || n.have.inode != st.Ino { //nolint:unconvert // as in load
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

// locate loads the state from where it was the last time, and looks for it when it is there no more: a machine with another
// version of the driver has its library under another name.
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

// read is the node as it is on disk. The caller holds n.mu. The content is only read when it is not what was read last.
func (n *Node) read() (v *View, s slot, err error) {
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
	if n.profile.source != c.Profile {
		p, err := ParseProfile([]byte(c.Profile))
		if err != nil {
			return nil, slot{}, fmt.Errorf("read %s: %w", n.library, err)
		}
		n.profile = p
	}
	if err := c.State.fits(n.profile); err != nil {
		return nil, slot{}, fmt.Errorf("read %s: %w", n.library, err)
	}
	n.have, n.last = id, newView(n.profile, c)
	return n.last, s, nil
}

// Change changes the state: f gets a copy to work on, and no other process sees anything but the state before and the state
// after. It returns when the state is on disk. When f returns an error nothing changes.
func (n *Node) Change(f func(*State) error) error {
	if n.dir == "" {
		return fmt.Errorf("change %s: it was attached to be read only", n.library)
	}
	return locked(n.dir, func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		v, s, err := n.read()
		if err != nil {
			return err
		}
		next := content{Seed: v.seed, State: v.state.clone(), Profile: v.Profile.source}
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
