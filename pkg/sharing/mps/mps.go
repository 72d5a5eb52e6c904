// SPDX-License-Identifier: Apache-2.0

// Package mps is what the plugin and the supervisor of MPS daemons tell each other, through files, so that daemons outlive
// the plugin:
//
//	<dir>/<ID>/wanted.json   written by the plugin: this daemon is to run, so; no such file: it is to stop
//	<dir>/<ID>/state.json    written by the supervisor: what it has made of that
//	<dir>/<ID>/pipe, log     the daemon's own; containers of its clients get the first as their CUDA_MPS_PIPE_DIRECTORY
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
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// ErrNotReady means that a daemon does not serve yet. The message says what is awaited.
var ErrNotReady = errors.New("MPS daemon is not ready")

// Daemon is an MPS control daemon that is wanted. A GPU belongs to one daemon at most.
type Daemon struct {
	ID   string     `json:"id"`   // the name of its first device: a DNS label
	GPUs []gpu.UUID `json:"gpus"` // in the order in which its clients count them
	// ThreadPercentage limits the multiprocessors of a client that does not limit itself further, in percent; 0: no limit.
	ThreadPercentage int `json:"threadPercentage,omitempty"`
	// Memory limits what a client that does not limit itself further may allocate of each GPU, in bytes; none: no limit.
	Memory map[gpu.UUID]uint64 `json:"memory,omitempty"`
	// MultiUser lets clients of different user ids use the GPUs at the same time. Without it they take turns.
	MultiUser bool `json:"multiUser,omitempty"`
	// Ask is set by Want: it tells the daemon from one that was wanted before and may still be ending.
	Ask string `json:"ask,omitempty"`
}

// State is what the supervisor says of a daemon.
type State struct {
	Wanted   string `json:"wanted"`            // Digest of the wanted.json that is true
	PID      int    `json:"pid"`               // of the control daemon, as the supervisor sees it
	Ready    bool   `json:"ready"`             // it answers, and its limits are set
	Message  string `json:"message,omitempty"` // why it is not ready
	Restarts int    `json:"restarts,omitempty"`
}

// Dir is the directory in which plugin and supervisor meet.
type Dir string

const (
	wantedFile = "wanted.json"
	stateFile  = "state.json"
)

// Pipe is the daemon's pipe directory, on the host.
func (d Dir) Pipe(id string) string { return filepath.Join(string(d), id, "pipe") }

// Log is the daemon's log directory, on the host.
func (d Dir) Log(id string) string { return filepath.Join(string(d), id, "log") }

// Want asks for the daemon. Asking again for the same changes nothing; asking for other limits changes those of the running one.
func (d Dir) Want(daemon Daemon) error {
	file := filepath.Join(string(d), daemon.ID, wantedFile)
	var is Daemon
	before, err := os.ReadFile(file)
	if err == nil && json.Unmarshal(before, &is) == nil {
		daemon.Ask = is.Ask
	} else {
		daemon.Ask = rand.Text()
	}
	data, err := encode(daemon)
	if err != nil || bytes.Equal(before, data) {
		return err
	}
	for {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		err := renameio.WriteFile(file, data, 0o644, renameio.IgnoreUmask(), renameio.WithTempDir(filepath.Dir(file)))
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// The supervisor has just removed the directory of the daemon before.
	}
}

// Unwant asks for the daemon's end. It is no error if there is none.
func (d Dir) Unwant(id string) error {
	err := os.Remove(filepath.Join(string(d), id, wantedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Asked is a daemon as it is asked for. Who asks may be of a newer version and say more than this one reads, so the digest is that
// of the file.
type Asked struct {
	Daemon
	Wanted string // Digest of the wanted.json
}

// Wanted are the daemons that are asked for, sorted by ID. One that cannot be read is reported in the error, beside the others.
func (d Dir) Wanted() ([]Daemon, error) {
	asked, err := d.Asked()
	var daemons []Daemon
	for _, a := range asked {
		daemons = append(daemons, a.Daemon)
	}
	return daemons, err
}

// Asked is Wanted with the digests that the answers need.
func (d Dir) Asked() ([]Asked, error) {
	files, err := filepath.Glob(filepath.Join(string(d), "*", wantedFile))
	if err != nil {
		return nil, err
	}
	var asked []Asked
	var errs []error
	for _, file := range files {
		var daemon Daemon
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &daemon)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // ended since the directory was read
		}
		if err == nil && daemon.ID != filepath.Base(filepath.Dir(file)) {
			err = fmt.Errorf("is about daemon %q", daemon.ID)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
			continue
		}
		asked = append(asked, Asked{daemon, digest(data)})
	}
	return asked, errors.Join(errs...)
}

// State is what the supervisor last said of the daemon; the zero State when it has said nothing.
func (d Dir) State(id string) (State, error) {
	var s State
	data, err := os.ReadFile(filepath.Join(string(d), id, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}

// Report is the supervisor's answer to Want.
func (d Dir) Report(id string, s State) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(string(d), id, stateFile), append(data, '\n'), 0o644,
		renameio.IgnoreUmask(), renameio.WithTempDir(filepath.Join(string(d), id)))
}

// Check says whether the daemon runs as it is wanted now. Error: ErrNotReady.
func (d Dir) Check(id string) error {
	wanted, err := os.ReadFile(filepath.Join(string(d), id, wantedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("MPS daemon %s: nobody wants it any more: %w", id, ErrNotReady)
	}
	if err != nil {
		return err
	}
	s, err := d.State(id)
	if err != nil {
		return err
	}
	supervised, err := d.Supervised()
	switch {
	case err != nil:
		return err
	case !supervised || s == State{}:
		return fmt.Errorf("MPS daemon %s: no answer of the supervisor yet; is its pod running on this node? %w", id, ErrNotReady)
	case !s.Ready && s.Message != "":
		return fmt.Errorf("MPS daemon %s: %s: %w", id, s.Message, ErrNotReady)
	case !s.Ready || s.Wanted != digest(wanted):
		return fmt.Errorf("MPS daemon %s: starting: %w", id, ErrNotReady)
	}
	return nil
}

// Supervised says whether a supervisor has the directory: it holds a lock on it for as long as its daemons live, and what one has
// said that was killed, or ended with the machine, is not true any more.
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

// Forget takes back what an earlier supervisor has said of its daemons: they have ended with it. How often they were started again
// stays known.
func (d Dir) Forget() error {
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

// pollPeriod is how often Await looks.
const pollPeriod = 5 * time.Millisecond

// Await returns when the daemon runs as it is wanted, or after the time with an ErrNotReady that says what it waits for.
func (d Dir) Await(ctx context.Context, id string, atMost time.Duration) error {
	deadline := time.After(atMost)
	for {
		err := d.Check(id)
		if !errors.Is(err, ErrNotReady) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-deadline:
			return err
		case <-time.After(pollPeriod):
		}
	}
}

// Digest identifies what is wanted of the daemon.
func (d Daemon) Digest() (string, error) {
	data, err := encode(d)
	if err != nil {
		return "", err
	}
	return digest(data), nil
}

func digest(wanted []byte) string {
	sum := sha256.Sum256(wanted)
	return hex.EncodeToString(sum[:8])
}

func encode(d Daemon) ([]byte, error) {
	data, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}
