// SPDX-License-Identifier: Apache-2.0

// Package supervise runs the MPS daemons that are wanted on a node. They are children of the program that it runs in.
package supervise

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// Config is what a supervisor needs to know.
type Config struct {
	Dir        mps.Dir
	DriverRoot string // of NVIDIA's driver, as this program sees it
	// SharedMemory is the directory that daemons and clients have as their /dev/shm; "" for none. It is made for all users.
	SharedMemory string
	Log          *slog.Logger
}

// lookPeriod is how often a supervisor looks what is wanted although it has noticed no change.
const lookPeriod = 10 * time.Second

// supervisor has a goroutine for each daemon, so that none waits for another.
type supervisor struct {
	Config
	group sync.WaitGroup

	mu      sync.Mutex
	keepers map[string]*keeper
}

// Run makes the directory true until ctx ends, and ends its daemons then. Where nothing is wanted it leaves nothing behind.
func Run(ctx context.Context, c Config) error {
	lock, err := lockDir(ctx, c)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := errors.Join(c.Dir.Forget(), c.shareMemory()); err != nil {
		return err
	}
	w, err := newWatcher()
	if err != nil {
		return err
	}
	defer w.close()
	s := &supervisor{Config: c, keepers: map[string]*keeper{}}
	tick := time.NewTicker(lookPeriod)
	defer tick.Stop()
	for ctx.Err() == nil {
		s.look(ctx, w)
		select {
		case <-ctx.Done():
		case <-w.changed:
		case <-tick.C:
		}
	}
	s.group.Wait()
	s.leave()
	return nil
}

// lockDir makes the directory, and waits until no other supervisor has it: one that is ending still has daemons.
func lockDir(ctx context.Context, c Config) (*os.File, error) {
	for said := false; ; {
		if err := os.MkdirAll(string(c.Dir), 0o755); err != nil {
			return nil, err
		}
		dir, err := os.Open(string(c.Dir))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && same(dir) {
			return dir, nil
		}
		_ = dir.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
		if err != nil && !said {
			said = true
			c.Log.Info("another supervisor still has the directory", "dir", c.Dir)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// same says whether the directory is still the one under its name: whoever left has removed it.
func same(dir *os.File) bool {
	open, err1 := dir.Stat()
	named, err2 := os.Stat(dir.Name())
	return err1 == nil && err2 == nil && os.SameFile(open, named)
}

// look tells every keeper what is wanted now.
func (s *supervisor) look(ctx context.Context, w *watcher) {
	if err := w.watch(string(s.Dir)); err != nil {
		s.Log.Error("cannot notice changes at once", "err", err)
	}
	asked, err := s.Dir.Asked()
	if err != nil {
		s.Log.Error("a daemon cannot be read; it stays as it is", "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[string]bool{}
	for _, d := range asked {
		wanted[d.ID] = true
		s.keep(ctx, d.ID).want(&d)
	}
	for id, k := range s.keepers {
		if !wanted[id] && !s.Dir.IsWanted(id) {
			k.want(nil)
		}
	}
	for _, id := range s.leftovers() {
		s.clear(id)
	}
}

// keep is the keeper of the daemon. The caller holds s.mu.
func (s *supervisor) keep(ctx context.Context, id string) *keeper {
	k, ok := s.keepers[id]
	if !ok {
		k = newKeeper(s, id)
		s.keepers[id] = k
		s.group.Go(func() { k.run(ctx) })
	}
	return k
}

// leftovers are the daemons that an earlier supervisor had and nobody wants. The caller holds s.mu.
func (s *supervisor) leftovers() []string {
	reported, err := filepath.Glob(filepath.Join(string(s.Dir), "*", "state.json"))
	if err != nil {
		return nil
	}
	var out []string
	for _, file := range reported {
		id := filepath.Base(filepath.Dir(file))
		if _, kept := s.keepers[id]; !kept && !s.Dir.IsWanted(id) {
			out = append(out, id)
		}
	}
	return out
}

func (s *supervisor) clear(id string) {
	if err := s.Dir.Clear(id); err != nil {
		s.Log.Error("something of the daemon is left", "daemon", id, "err", err)
	}
}

// shareMemory makes the directory for shared memory as /dev/shm is.
func (c Config) shareMemory() error {
	if c.SharedMemory == "" {
		return nil
	}
	if err := os.MkdirAll(c.SharedMemory, 0o755); err != nil {
		return err
	}
	return os.Chmod(c.SharedMemory, 0o777|os.ModeSticky)
}

// leave removes the directory, with that for shared memory, and the one above if it is the last in there: whoever leaves last takes it away.
func (s *supervisor) leave() {
	if err := os.Remove(string(s.Dir)); err == nil || errors.Is(err, fs.ErrNotExist) {
		if s.SharedMemory != "" {
			_ = os.RemoveAll(s.SharedMemory)
		}
		_ = os.Remove(filepath.Dir(string(s.Dir)))
	}
}
