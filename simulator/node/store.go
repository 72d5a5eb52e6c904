// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// The state of a node is one file, which is also the simulated management library: a container that gets the library
// gets the live state. The library is bind-mounted into containers, and a bind mount stays with its inode. So the file
// is never replaced, only written in place: it has two slots, a writer fills the older one and a reader takes the
// newest intact one. After a torn write the previous state is still there.
//
//	0            a library without functions, and a line of text that says what the file is
//	4096         slot 0: sequence (8 bytes), length (4), CRC-32C of sequence, length and content (4), content
//	4096+512Ki   slot 1
const (
	preamble   = "The state of simulated GPUs in place of a library; see simctl. The simulated nvidia-smi reads it."
	firstSlot  = 4096
	slotSize   = 512 << 10
	slotHeader = 16
	fileSize   = firstSlot + 2*slotSize
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrCorrupt means that a state file has no intact state. The message names the file and the remedy.
var ErrCorrupt = errors.New("no whole state in the file")

// slot is the newest intact state in a file.
type slot struct {
	index    int
	sequence uint64
	content  []byte // nil if the reader already knows the sequence
}

// identity identifies a file and the version of its state.
type identity struct {
	device, inode, sequence uint64
}

// corruptTimeout is how long a reader waits for a concurrent writer before it reports a file without an intact slot as
// corrupt. Both slots can look torn to a reader that was overtaken twice, but then their sequences keep changing.
const corruptTimeout = 50 * time.Millisecond

// load returns the newest intact state of the file, without its content if that is the one that have identifies.
func load(path string, have identity) (slot, identity, error) {
	f, err := os.Open(path)
	if err != nil {
		return slot{}, identity{}, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return slot{}, identity{}, fmt.Errorf("stat %s: %w", path, err)
	}
	id := identity{device: uint64(st.Dev), inode: st.Ino} //nolint:unconvert // the type differs between architectures
	known := uint64(0)
	if have.device == id.device && have.inode == id.inode {
		known = have.sequence
	}
	var seen [2]uint64
	for quiet := time.Now(); ; {
		s, sequences, ok := newest(f, known)
		if ok && s.sequence >= known {
			id.sequence = s.sequence
			return s, id, nil
		}
		if sequences != seen {
			seen, quiet = sequences, time.Now()
		}
		if time.Since(quiet) > corruptTimeout {
			return slot{}, identity{}, corrupt(path, st.Size)
		}
		time.Sleep(time.Millisecond)
	}
}

func corrupt(path string, size int64) error {
	return fmt.Errorf("%w: %s (%d bytes, %d expected); the simulated GPUs of this node cannot be read; "+
		"to make new ones, with new UUIDs, remove the file and restart the plugin of this node", ErrCorrupt, path, size,
		fileSize)
}

// newest returns the intact slot with the highest sequence, without its content if that sequence is known.
func newest(f *os.File, known uint64) (s slot, sequences [2]uint64, ok bool) {
	for i := range sequences {
		var head [slotHeader]byte
		if _, err := f.ReadAt(head[:], offset(i)); err == nil {
			sequences[i] = binary.LittleEndian.Uint64(head[:])
		}
	}
	first := 0
	if sequences[1] > sequences[0] {
		first = 1
	}
	for _, i := range []int{first, 1 - first} {
		if known != 0 && sequences[i] == known {
			return slot{index: i, sequence: known}, sequences, true
		}
		if s, ok := readSlot(f, i); ok {
			return s, sequences, true
		}
	}
	return slot{}, sequences, false
}

func offset(index int) int64 { return firstSlot + int64(index)*slotSize }

func readSlot(f *os.File, index int) (slot, bool) {
	var head [slotHeader]byte
	if _, err := f.ReadAt(head[:], offset(index)); err != nil {
		return slot{}, false
	}
	sequence, length := binary.LittleEndian.Uint64(head[0:]), binary.LittleEndian.Uint32(head[8:])
	if sequence == 0 || length > slotSize-slotHeader {
		return slot{}, false
	}
	content := make([]byte, length)
	if _, err := f.ReadAt(content, offset(index)+slotHeader); err != nil {
		return slot{}, false
	}
	return slot{index, sequence, content}, checksum(head[:12], content) == binary.LittleEndian.Uint32(head[12:])
}

func checksum(head, content []byte) uint32 {
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, content)
}

// writeSlot writes the content into the slot and syncs it to disk, because the next write destroys the other slot.
func writeSlot(f *os.File, index int, sequence uint64, content []byte) error {
	if len(content) > slotSize-slotHeader {
		return fmt.Errorf("write %s: the state has %d bytes, at most %d fit", f.Name(), len(content),
			slotSize-slotHeader)
	}
	buf := make([]byte, slotHeader, slotHeader+len(content))
	binary.LittleEndian.PutUint64(buf[0:], sequence)
	binary.LittleEndian.PutUint32(buf[8:], uint32(len(content)))
	binary.LittleEndian.PutUint32(buf[12:], checksum(buf[:12], content))
	if _, err := f.WriteAt(append(buf, content...), offset(index)); err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	if err := unix.Fdatasync(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", f.Name(), err)
	}
	return nil
}

// create creates a state file with its first state. The file appears only when it is complete.
func create(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // already renamed on success
	defer f.Close()
	if err := errors.Join(f.Chmod(0o644), f.Truncate(fileSize)); err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	if _, err := f.WriteAt(EmptyLibrary(libraryName+"1", preamble), 0); err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	if err := writeSlot(f, 0, 1, content); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// replace writes the next state after s. The caller holds the lock.
func replace(path string, s slot, content []byte) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return writeSlot(f, 1-s.index, s.sequence+1, content)
}

// Locked runs f under the lock with that name in dir, which excludes other processes and goroutines.
func Locked(dir, name string, f func() error) error { return lockedBy(dir, name, os.O_CREATE, f) }

// lockedBy runs f under the lock. The flag is os.O_CREATE, or 0 if the lock must exist.
func lockedBy(dir, name string, flag int, f func() error) error {
	lock, err := os.OpenFile(filepath.Join(dir, name), flag|os.O_RDWR, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s", ErrNoNode, dir)
	}
	if err != nil {
		return err
	}
	defer lock.Close() // releases the lock
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX)
		if err == nil {
			return f()
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
	}
}

// stateLock is the lock of the state of a node. Open creates it. A change does not: a call that has hung may go on
// while the directory is removed, and must leave nothing there.
const stateLock = "lock"
