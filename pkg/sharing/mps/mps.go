// SPDX-License-Identifier: Apache-2.0

// Package mps is the file-based protocol between the plugin and the supervisor of MPS daemons. With files, daemons
// outlive the plugin:
//
//	<dir>/<ID>/wanted.json   written by the plugin: the requested daemon; without the file, it is to stop
//	<dir>/<ID>/state.json    written by the supervisor: whether the daemon runs as requested
//	<dir>/<ID>/pipe, log     the daemon's own; its clients get the first as CUDA_MPS_PIPE_DIRECTORY
//
// The supervisor makes the directory <ID>/pipe before it starts a daemon, and removes <ID> after it has stopped it.
package mps

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// ErrNotReady means that a daemon does not serve clients yet. The message says why.
var ErrNotReady = errors.New("MPS daemon is not ready")

// Daemon is an MPS control daemon. A GPU belongs to at most one daemon.
type Daemon struct {
	ID   string     `json:"id"`   // the name of its first device: a DNS label
	GPUs []gpu.UUID `json:"gpus"` // clients index them in this order
	// ThreadPercentage is the default limit of a client's multiprocessors, in percent; 0: no limit. A client can lower
	// it.
	ThreadPercentage int `json:"threadPercentage,omitempty"`
	// Memory is the default limit of a client's memory on each GPU, in bytes; none: no limit. A client can lower it.
	Memory map[gpu.UUID]uint64 `json:"memory,omitempty"`
	// MultiUser lets clients of different user IDs use the GPUs at the same time. Without it they take turns.
	MultiUser bool `json:"multiUser,omitempty"`
	// SharedMemory is the size of a private /dev/shm for the daemon and its clients, in bytes; 0: that of all daemons.
	// Request keeps the size of an existing daemon.
	SharedMemory uint64 `json:"sharedMemory,omitempty"`
	// Nonce is set by Request. It differs from that of an earlier daemon with the same ID, which may still be ending.
	Nonce string `json:"ask,omitempty"`
}

// DaemonState is the supervisor's report about a daemon.
type DaemonState struct {
	Digest   string `json:"wanted"`            // of the requested daemon that the report is about
	PID      int    `json:"pid"`               // of the control daemon, as the supervisor sees it
	Ready    bool   `json:"ready"`             // the daemon answers, and its limits are set
	Message  string `json:"message,omitempty"` // why it is not ready
	Restarts int    `json:"restarts,omitempty"`
	// SingleUser means that MultiUser is requested and that the driver's control program does not know it.
	SingleUser bool `json:"singleUser,omitempty"`
	// ServerFailures counts the servers of this process that ended with an error, and ServerFailure says how the last
	// one did.
	ServerFailures int    `json:"serverFailures,omitempty"`
	ServerFailure  string `json:"serverFailure,omitempty"`
	// SharedMemory is the directory, on the host, for /dev/shm of clients; empty: that of all daemons. Older
	// supervisors do not report it.
	SharedMemory string `json:"sharedMemory,omitempty"`
}

// Dir is the directory that plugin and supervisor share.
type Dir string

// Below returns the directory of the plugin that keeps its files in this one.
func Below(pluginDir string) Dir { return Dir(filepath.Join(pluginDir, "mps")) }

// Files in the directory of a daemon.
const (
	RequestedFile = "wanted.json" // the requested daemon
	stateFile     = "state.json"
)

// DaemonDirs returns the directories of all daemons.
func (d Dir) DaemonDirs() []string {
	dirs, _ := filepath.Glob(filepath.Join(string(d), "*"))
	return dirs
}

// Concerns reports whether a change of the file may change requested daemons or states: the directory itself, that of a
// daemon, or one of their files.
func (d Dir) Concerns(file string) bool {
	switch filepath.Base(file) {
	case RequestedFile, stateFile:
		return true
	}
	return file == string(d) || filepath.Dir(file) == string(d)
}

// Pipe returns the daemon's pipe directory, on the host.
func (d Dir) Pipe(id string) string { return filepath.Join(string(d), id, "pipe") }

// Log returns the daemon's log directory, on the host.
func (d Dir) Log(id string) string { return filepath.Join(string(d), id, "log") }

// SharedMemory returns the daemon's own directory for shared memory, on the host.
func (d Dir) SharedMemory(id string) string { return filepath.Join(string(d), id, "shm") }

// Request requests the daemon. If an equal one is requested, nothing changes. Other limits change those of the running
// daemon.
func (d Dir) Request(daemon Daemon) error {
	file := filepath.Join(string(d), daemon.ID, RequestedFile)
	var present Daemon
	before, err := os.ReadFile(file)
	if err == nil && json.Unmarshal(before, &present) == nil && present.ID == daemon.ID {
		daemon.Nonce, daemon.SharedMemory = present.Nonce, present.SharedMemory
	} else {
		daemon.Nonce = rand.Text()
	}
	data, err := json.MarshalIndent(daemon, "", "  ")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if bytes.Equal(before, data) {
		return nil
	}
	for {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		err := renameio.WriteFile(file, data, 0o644, renameio.IgnoreUmask(), renameio.WithTempDir(filepath.Dir(file)))
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// The supervisor has just removed the directory of the previous daemon.
	}
}

// Release ends the request: the daemon is to stop. It is no error if it is not requested.
func (d Dir) Release(id string) error {
	err := os.Remove(filepath.Join(string(d), id, RequestedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// RequestedDaemon is a requested daemon. The digest is that of its file, because a newer plugin may have written more
// fields than this version reads.
type RequestedDaemon struct {
	Daemon
	Digest string
}

// Requested returns the requested daemons, sorted by ID, together with an error for the unreadable ones.
func (d Dir) Requested() ([]RequestedDaemon, error) {
	files, err := filepath.Glob(filepath.Join(string(d), "*", RequestedFile))
	if err != nil {
		return nil, err
	}
	var requested []RequestedDaemon
	var errs []error
	for _, file := range files {
		var daemon Daemon
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &daemon)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // released since the directory was read
		}
		if err == nil && daemon.ID != filepath.Base(filepath.Dir(file)) {
			err = fmt.Errorf("is about daemon %q", daemon.ID)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
			continue
		}
		requested = append(requested, RequestedDaemon{daemon, digest(data)})
	}
	return requested, errors.Join(errs...)
}

// State returns the supervisor's last report about the daemon; the zero DaemonState if there is none.
func (d Dir) State(id string) (DaemonState, error) {
	var s DaemonState
	data, err := os.ReadFile(filepath.Join(string(d), id, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}

// Report writes the supervisor's report about the daemon.
func (d Dir) Report(id string, s DaemonState) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(string(d), id, stateFile), append(data, '\n'), 0o644,
		renameio.IgnoreUmask(), renameio.WithTempDir(filepath.Join(string(d), id)))
}

// Check returns ErrNotReady unless the daemon runs as it is requested now.
func (d Dir) Check(id string) error {
	requested, err := os.ReadFile(filepath.Join(string(d), id, RequestedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("MPS daemon %s: nobody wants it any more: %w", id, ErrNotReady)
	}
	if err != nil {
		return err
	}
	// The supervisor is looked for first: a report that was read before may be that of an earlier one.
	supervised, err := d.Supervised()
	if err != nil {
		return err
	}
	s, err := d.State(id)
	switch {
	case err != nil:
		return err
	case !supervised || s == DaemonState{}:
		return fmt.Errorf("MPS daemon %s: no answer of the supervisor yet; is its pod running on this node? %w", id,
			ErrNotReady)
	case !s.Ready && s.Message != "":
		return fmt.Errorf("MPS daemon %s: %s: %w", id, s.Message, ErrNotReady)
	case !s.Ready || s.Digest != digest(requested):
		return fmt.Errorf("MPS daemon %s: starting: %w", id, ErrNotReady)
	}
	return nil
}

// Supervised reports whether a supervisor runs. It holds an exclusive lock on the directory while its daemons live. The
// reports of a supervisor that was killed, or ended by a reboot, are not valid any more.
func (d Dir) Supervised() (bool, error) {
	dir, err := os.Open(string(d))
	if err != nil {
		return false, err
	}
	defer dir.Close()
	err = unix.Flock(int(dir.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// SameFile reports whether an open file or directory still has its name. Another process may have removed it.
func SameFile(f *os.File) bool {
	open, err1 := f.Stat()
	named, err2 := os.Stat(f.Name())
	return err1 == nil && err2 == nil && os.SameFile(open, named)
}

// ResetStates marks the daemons of an earlier supervisor as not ready, because they have ended with it. It counts a
// restart of each. A supervisor calls it before it takes the exclusive lock, which makes all reports valid.
func (d Dir) ResetStates() error {
	files, err := filepath.Glob(filepath.Join(string(d), "*", stateFile))
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		id := filepath.Base(filepath.Dir(file))
		s, err := d.State(id)
		if err == nil && s.Ready {
			s.Ready, s.Restarts = false, s.Restarts+1
			err = d.Report(id, s)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// pollPeriod is how often Await checks.
const pollPeriod = 5 * time.Millisecond

// Await waits until the daemon runs as it is requested. When ctx ends first, the error is an ErrNotReady that says why.
func (d Dir) Await(ctx context.Context, id string) error {
	for {
		err := d.Check(id)
		if !errors.Is(err, ErrNotReady) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pollPeriod):
		}
	}
}

func digest(file []byte) string {
	sum := sha256.Sum256(file)
	return hex.EncodeToString(sum[:8])
}

// IsRequested reports whether the daemon is requested, even by an unreadable file.
func (d Dir) IsRequested(id string) bool {
	_, err := os.Lstat(filepath.Join(string(d), id, RequestedFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// Libraries returns the directory of links to the driver's libraries for the daemon.
func (d Dir) Libraries(id string) string { return filepath.Join(string(d), id, "lib") }

// temporaryFiles returns the files of a program that is writing a requested daemon or a state, or was killed while it
// did. One that is writing starts again if its file is removed: see Request.
func (d Dir) temporaryFiles(id string) []string {
	var all []string
	for _, file := range []string{RequestedFile, stateFile} {
		found, _ := filepath.Glob(filepath.Join(string(d), id, "."+file+"*"))
		all = append(all, found...)
	}
	return all
}

// abandonedAfter is the age at which a directory without a request and a state is abandoned: a plugin makes it just
// before it writes the request. One from as far in the future was made when the clock was ahead.
const abandonedAfter = time.Minute

// Abandoned returns the IDs of directories that a killed program has left, without a request or a state.
func (d Dir) Abandoned() []string {
	var ids []string
	for _, dir := range d.DaemonDirs() {
		id := filepath.Base(dir)
		info, err := os.Stat(dir)
		_, noState := os.Lstat(filepath.Join(dir, stateFile))
		if err == nil && info.IsDir() && time.Since(info.ModTime()).Abs() > abandonedAfter && !d.IsRequested(id) &&
			errors.Is(noState, fs.ErrNotExist) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Clear removes the supervisor's files of the daemon, and its directory unless the daemon has been requested again. It
// may be repeated.
func (d Dir) Clear(id string) error {
	dir := filepath.Join(string(d), id)
	errs := []error{os.RemoveAll(d.Pipe(id)), os.RemoveAll(d.SharedMemory(id)), os.RemoveAll(d.Log(id)),
		os.RemoveAll(d.Libraries(id))}
	for _, path := range append(d.temporaryFiles(id), filepath.Join(dir, stateFile), dir) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
