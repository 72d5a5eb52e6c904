// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// The files of this package in the directory of the plugin.
const (
	stateFile   = "health.json"
	lockFile    = "health.lock"   // held while an instance reads and writes the state
	releaseFile = "let-go-nvml"   // the time until which NVML is to be closed, and for how long
	clearPrefix = "clear-health-" // followed by the name of a GPU
)

// Saved is the state on disk.
type Saved struct {
	State
	// Release says why NVML is closed; empty: it is not.
	Release string `json:"letGo,omitempty"`
	// GPUs are all known GPUs.
	GPUs []SavedGPU `json:"gpus,omitempty"`
}

// SavedGPU is a GPU with the rules that are in force for what is, or was, wrong with it.
type SavedGPU struct {
	Name    string         `json:"name"`
	UUID    gpu.UUID       `json:"uuid"`
	Product string         `json:"product"`
	Rules   map[Cause]Rule `json:"rules,omitempty"`
	// Unwatched says why its events are not watched; empty: they are.
	Unwatched string `json:"unwatched,omitempty"`
}

// Load reads the state that a plugin has saved in its directory; the zero value if there is none.
func Load(dir string) (Saved, error) {
	var s Saved
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return Saved{}, fmt.Errorf("read the health of the GPUs: %w", err)
	}
	return s, nil
}

// Save writes the state to the directory of the plugin.
func (s Saved) Save(dir string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, stateFile), data, 0o600)
}

// Pauses between the attempts to lock the state. It is held for milliseconds, unless its holder hangs.
const (
	lockPause    = 10 * time.Millisecond
	lockAttempts = 100
)

// Locked calls do while no other instance does the same, so that none overwrites what another has saved in between. It
// is an error if another one holds the lock for long.
func Locked(dir string, do func() error) error {
	file, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	for range lockAttempts {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return do()
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		time.Sleep(lockPause)
	}
	return fmt.Errorf("lock %s: %w", file.Name(), err)
}

// Forget removes the files from the plugin's directory, but keeps the state if something is wrong with a GPU.
func Forget(dir string) error {
	lockErr := remove(filepath.Join(dir, lockFile))
	s, err := Load(dir)
	if err == nil && slices.ContainsFunc(s.Conditions, Condition.Active) {
		return lockErr
	}
	ClearRequests(dir)
	return errors.Join(lockErr, remove(filepath.Join(dir, stateFile)), remove(filepath.Join(dir, releaseFile)))
}

func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// IsRequest reports whether the file, in the directory of the plugin, is a request of people.
func IsRequest(file string) bool {
	name := filepath.Base(file)
	return name == releaseFile || strings.HasPrefix(name, clearPrefix)
}

// RequestClear asks the plugin with the directory to end everything that is wrong with a GPU.
func RequestClear(dir, device string) error {
	return os.WriteFile(filepath.Join(dir, clearPrefix+device), nil, 0o600)
}

// ClearRequested reports whether the plugin has not done that yet.
func ClearRequested(dir, device string) bool {
	_, err := os.Stat(filepath.Join(dir, clearPrefix+device))
	return err == nil
}

// ClearRequests returns the names of the GPUs that people have asked to clear, each once.
func ClearRequests(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, clearPrefix+"*"))
	var names []string
	for _, file := range found {
		if os.Remove(file) == nil {
			names = append(names, strings.TrimPrefix(filepath.Base(file), clearPrefix))
		}
	}
	return names
}

// RequestRelease asks the plugin with the directory to close NVML from now on for so long; 0 opens it again.
func RequestRelease(dir string, now time.Time, lasts time.Duration) error {
	file := filepath.Join(dir, releaseFile)
	if lasts == 0 {
		return remove(file)
	}
	text := fmt.Sprintf("%s %s", now.Add(lasts).Format(time.RFC3339), lasts)
	return renameio.WriteFile(file, []byte(text), 0o600)
}

// releaseAnswer begins Saved.Release while NVML is closed on request.
const releaseAnswer = "NVML is closed until "

// ReleaseAnswer returns Saved.Release for a request to close NVML until then.
func ReleaseAnswer(until time.Time) string {
	return releaseAnswer + until.UTC().Format(time.RFC3339) + ", as asked for"
}

// ReleaseOtherwise reports whether NVML is closed for another reason than a request.
func (s Saved) ReleaseOtherwise() bool {
	return s.Release != "" && !strings.HasPrefix(s.Release, releaseAnswer)
}

// ReleaseRequest returns the end of the time for which an administrator wants NVML closed; zero: nobody has asked. If
// the clock was ahead when he asked, the time begins now.
func ReleaseRequest(dir string, now time.Time) time.Time {
	text, err := os.ReadFile(filepath.Join(dir, releaseFile))
	if err != nil {
		return time.Time{}
	}
	end, duration, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	until, err := time.Parse(time.RFC3339, end)
	if err != nil {
		return time.Time{}
	}
	if lasts, err := time.ParseDuration(duration); err == nil && until.Sub(now) > lasts {
		if until = now.Add(lasts); RequestRelease(dir, now, lasts) != nil {
			return time.Time{}
		}
	}
	return until
}
