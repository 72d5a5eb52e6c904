// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Metadata writes the files with the metadata of claims, which are mounted into their containers, and tells whether one
// still is. It knows the files that this process has written first; of others, anything may be mounted. Close it in the
// end.
type Metadata struct {
	Dir string // where kubeletplugin keeps the metadata of claims
	// Prepared reports whether a claim is prepared. removeAll needs it.
	Prepared func(types.UID) bool

	files   sync.Mutex // held while a file is written, or a directory made or removed
	mu      sync.Mutex
	claims  map[types.UID][]mountable
	made    map[string]bool // by directory: no container has a file that was there
	removed map[types.UID][]removedFile
	events  int // inotify instance; 0: not opened yet
	closed  bool
}

// mountable is the only file that was ever at a path, so a container has this one or none.
type mountable struct {
	path  string
	inode uint64
	mtime unix.Timespec
}

// removedFile is a file that is to be written again if its claim is not released.
type removedFile struct {
	path string
	data []byte
	perm os.FileMode
}

// Operations are what kubeletplugin writes and removes the files with.
func (m *Metadata) Operations() kubeletplugin.MetadataFileOperations {
	return kubeletplugin.MetadataFileOperations{WriteFile: m.write, MkdirAll: m.mkdirAll, RemoveAll: m.removeAll,
		Glob: m.glob}
}

// Close closes the inotify instance. From then on, files are written as before, and each counts as mounted. It may be
// called again.
func (m *Metadata) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.events != 0 {
		_ = unix.Close(m.events)
		m.events = 0
	}
}

// mkdirAll is os.MkdirAll, and notes whether the directory is new. If an old one has no file, a container may still
// have the one that was there: the plugin was killed while it released the claim.
func (m *Metadata) mkdirAll(dir string, perm os.FileMode) error {
	if !strings.HasPrefix(dir, m.Dir+"/") {
		return os.MkdirAll(dir, perm)
	}
	m.files.Lock()
	defer m.files.Unlock()
	if err := os.MkdirAll(filepath.Dir(dir), perm); err != nil {
		return err
	}
	err := os.Mkdir(dir, perm)
	m.mu.Lock()
	defer m.mu.Unlock()
	if errors.Is(err, os.ErrExist) {
		delete(m.made, dir)
		return os.MkdirAll(dir, perm)
	}
	if err != nil {
		return err
	}
	if m.made == nil {
		m.made = map[string]bool{}
	}
	m.made[dir] = true
	return nil
}

// write replaces a file atomically, but without fsync. kubeletplugin also writes its CDI specs by it.
func (m *Metadata) write(name string, data []byte, perm os.FileMode) error {
	if !strings.HasPrefix(name, m.Dir+"/") {
		_, err := replaceFile(name, data, perm, 0)
		return err
	}
	m.files.Lock()
	defer m.files.Unlock()
	if there, err := os.ReadFile(name); err == nil && bytes.Equal(there, data) {
		m.wrote(data, name, nil)
		return nil
	}
	first, err := replaceFile(name, data, perm, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EINVAL) { // the file system may not know the flag
		first = nil
		_, err = replaceFile(name, data, perm, 0)
	}
	m.wrote(data, name, first)
	return err
}

// replaceFile renames a new file to this name, with the flags of renameat2(2), and returns it.
func replaceFile(name string, data []byte, perm os.FileMode, flags uint) (*mountable, error) {
	temporary, file, err := newFile(name, data, perm)
	if err != nil {
		return nil, err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, temporary, unix.AT_FDCWD, name, flags); err != nil {
		return nil, errors.Join(&os.LinkError{Op: "rename", Old: temporary, New: name, Err: err},
			os.Remove(temporary))
	}
	return file, nil
}

// newFile writes a file beside this name, which it is to get. It returns its path, and nil if its file system cannot
// tell whether it is mounted.
func newFile(name string, data []byte, perm os.FileMode) (path string, file *mountable, err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*.tmp")
	if err != nil {
		return "", nil, err
	}
	var fs unix.Statfs_t
	var stat unix.Stat_t
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(perm), unix.Fstat(int(f.Fd()), &stat), unix.Fstatfs(int(f.Fd()), &fs), f.Close())
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(f.Name()))
	}
	if slices.Contains(localFileSystems, fs.Type) {
		file = &mountable{name, stat.Ino, stat.Mtim}
	}
	return f.Name(), file, nil
}

// localFileSystems keep one directory entry in memory for a file that has one name, while it is mounted. File systems
// on a network, and those of programs, may forget it and make another one.
var localFileSystems = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC,
	unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC}

// wrote notes which file of a claim was written; nil: it may not be the first one.
func (m *Metadata) wrote(data []byte, name string, first *mountable) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.made[filepath.Dir(name)] {
		first = nil
	}
	delete(m.made, filepath.Dir(name))
	claim := claimIn(data)
	if claim == "" {
		return // nothing is known of any claim
	}
	files, known := m.claims[claim]
	i := slices.IndexFunc(files, func(f mountable) bool { return f.path == name })
	switch {
	case first == nil && i >= 0 && files[i].isThere():
	case first == nil || i >= 0 || known && files == nil:
		m.note(claim, nil)
	default:
		m.note(claim, append(files, *first))
	}
}

// claimIn returns the UID of the claim whose metadata this is; empty: kubeletplugin writes it in another way.
func claimIn(data []byte) types.UID {
	_, rest, _ := bytes.Cut(data, []byte(`"uid": "`)) // as kubeletplugin writes it, before all attributes
	uid, _, _ := bytes.Cut(rest, []byte(`"`))
	return types.UID(uid)
}

// removeAll removes the directory of a claim that was released, unless a file in it is that of a prepared claim: of a
// later one with the same name, which is all that kubeletplugin knows a directory by.
func (m *Metadata) removeAll(dir string) error {
	m.files.Lock()
	defer m.files.Unlock()
	requests, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil // as unmounted leaves it
	}
	for _, request := range requests {
		data, err := os.ReadFile(filepath.Join(dir, request.Name(), "metadata.json"))
		if claim := claimIn(data); err == nil && claim != "" && m.Prepared(claim) {
			return nil
		}
	}
	return os.RemoveAll(dir)
}

// glob is filepath.Glob for a pattern of file names, and also finds the temporary files that write has left of such
// files if the plugin was killed. kubeletplugin removes the CDI specs that it finds when a claim is released.
func (*Metadata) glob(pattern string) (found []string, err error) {
	dir, name := filepath.Split(pattern)
	files, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, file := range files {
		isFile, _ := filepath.Match(name, file.Name())
		isTemporary, _ := filepath.Match("."+name+".*.tmp", file.Name()) // as newFile names it
		if isFile || isTemporary {
			found = append(found, filepath.Join(dir, file.Name()))
		}
	}
	return found, err
}

// note sets what is known of the files of a claim; none: containers may have files that are not known.
func (m *Metadata) note(claim types.UID, files []mountable) {
	if m.claims == nil {
		m.claims = map[types.UID][]mountable{}
	}
	m.claims[claim] = files
}

// forget says that no container has a file of the claim.
func (m *Metadata) forget(claim types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.claims, claim)
	delete(m.removed, claim)
}

// unmounted removes the files of the claim, and reports that no container has one of them: then their directories go,
// too. If it returns false, a container may have one, and a claim that is not released needs restore. From here on no
// container starts with the claim: the runtime finds no file to mount.
//
// It sees whether the kernel drops each file that it removes: a bind mount would keep it. So it takes as long with any
// number of processes.
func (m *Metadata) unmounted(claim sharing.Claim) bool {
	m.files.Lock()
	dirs, unmounted := m.removeFiles(claim)
	if !unmounted {
		m.files.Unlock()
		return false
	}
	go func() { // while the caller removes the record; what comes after it waits for the lock
		defer m.files.Unlock()
		for _, dir := range dirs {
			_ = unix.Rmdir(dir) // one with a file stays: another instance has written it meanwhile
		}
	}()
	return true
}

// removeFiles is unmounted, but leaves the directories, which it returns in the order in which they can be removed. The
// caller holds m.files.
func (m *Metadata) removeFiles(claim sharing.Claim) (dirs []string, unmounted bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	files := m.claims[claim.UID]
	dir := filepath.Join(m.Dir, claim.Namespace+"_"+claim.Name)
	requests, err := os.ReadDir(dir)
	unmounted = err == nil && len(files) > 0 && len(requests) == len(files) // else another instance has written some
	for _, request := range requests {
		dirs = append(dirs, filepath.Join(dir, request.Name()))
		path := filepath.Join(dir, request.Name(), "metadata.json")
		data, err := os.ReadFile(path)
		if err != nil || claimIn(data) != claim.UID { // a later claim may have the same name
			unmounted = false
			continue
		}
		m.keep(claim.UID, path, data)
		isFirst := slices.ContainsFunc(files, func(f mountable) bool { return f.path == path && f.isThere() })
		if unmounted = unmounted && isFirst; unmounted {
			unmounted = m.drops(path)
		} else {
			_ = os.Remove(path) // without that, containers can start as before
		}
	}
	if unmounted {
		delete(m.claims, claim.UID)
		delete(m.removed, claim.UID)
	}
	return append(dirs, dir), unmounted
}

// keep keeps the content of a file of the claim for restore.
func (m *Metadata) keep(claim types.UID, path string, data []byte) {
	perm := os.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		perm = info.Mode().Perm()
	}
	if m.removed == nil {
		m.removed = map[types.UID][]removedFile{}
	}
	former := slices.DeleteFunc(m.removed[claim], func(f removedFile) bool { return f.path == path })
	m.removed[claim] = append(former, removedFile{path, data, perm})
}

// restore writes the files of the claim again that unmounted has removed. After an error, as on a full disk, it may be
// called again; without a file, containers of the claim do not start until it is prepared again.
func (m *Metadata) restore(claim types.UID) error {
	m.files.Lock()
	defer m.files.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	var left []removedFile
	for _, f := range m.removed[claim] {
		if _, err := os.Lstat(f.path); err == nil {
			continue // the claim was prepared meanwhile
		}
		_, err := replaceFile(f.path, f.data, f.perm, 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // without a directory, the claim was released meanwhile
			errs, left = append(errs, fmt.Errorf("write the device metadata again: %w", err)), append(left, f)
		}
	}
	delete(m.removed, claim)
	if len(left) > 0 {
		m.removed[claim] = left
	}
	return errors.Join(errs...)
}

// isThere reports whether the file is still the one at its path.
func (f mountable) isThere() bool {
	var stat unix.Stat_t
	return unix.Lstat(f.path, &stat) == nil && stat.Ino == f.inode && stat.Mtim == f.mtime
}

// drops removes the file, and reports whether the kernel has dropped it: IN_DELETE_SELF comes when the last user of
// its directory entry has gone, and with the system call that removes the file if it has no other (inotify(7)).
func (m *Metadata) drops(name string) bool {
	var err error
	if m.events == 0 && !m.closed {
		if m.events, err = unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC); err != nil {
			m.events = 0 // the programs of the node have used up all instances
		}
	}
	watch := -1
	if m.events != 0 {
		if watch, err = unix.InotifyAddWatch(m.events, name, unix.IN_DELETE_SELF); err != nil {
			watch = -1
		}
	}
	if err := os.Remove(name); err != nil || watch < 0 {
		return false
	}
	dropped := false
	buffer := make([]byte, 4<<10)
	for !dropped {
		n, err := unix.Read(m.events, buffer)
		if err != nil || n <= 0 {
			break
		}
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			event := buffer[at:]
			if int32(binary.NativeEndian.Uint32(event)) == int32(watch) &&
				binary.NativeEndian.Uint32(event[4:])&unix.IN_DELETE_SELF != 0 {
				dropped = true
			}
			at += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(event[12:]))
		}
	}
	if !dropped {
		_, _ = unix.InotifyRmWatch(m.events, uint32(watch))
	}
	return dropped
}
