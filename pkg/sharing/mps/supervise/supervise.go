// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fsnotify/fsnotify"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// SupervisorConfig configures a supervisor.
type SupervisorConfig struct {
	Dir        mps.Dir
	DriverRoot string // of NVIDIA's driver, as this program sees it
	// SharedMemory is the directory for /dev/shm of daemons without one of their own, and of their clients; "" for
	// none. It is created writable for all users.
	SharedMemory string
	Log          *slog.Logger
}

// resyncPeriod is how often a supervisor reads the requested daemons without a change event, and writes reports again
// that could not be written. Where inotify cannot be used, because the programs of the node have used up its instances
// or watches, there are no events and it is pollPeriod. A test changes it.
var resyncPeriod = 10 * time.Second

const pollPeriod = time.Second

// supervisor has a worker goroutine for each daemon, so that none waits for another.
type supervisor struct {
	SupervisorConfig
	group     sync.WaitGroup
	changes   *fsnotify.Watcher // of files; nil: not available
	unwatched string            // why changes are not noticed at once; empty: they are

	mu      sync.Mutex
	workers map[string]*worker
}

// Run runs the requested daemons until ctx ends, and then stops them. It removes the directory if no daemon is
// requested.
func Run(ctx context.Context, c SupervisorConfig) error {
	lock, err := lockDir(ctx, c)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := c.shareMemory(); err != nil {
		return err
	}
	s := &supervisor{SupervisorConfig: c, workers: map[string]*worker{}}
	for ctx.Err() == nil {
		period := s.watch()
		s.reconcile(ctx)
		s.awaitChange(ctx, period)
	}
	s.group.Wait()
	if s.changes != nil {
		_ = s.changes.Close()
	}
	s.removeDirs()
	return nil
}

// lockDir creates the directory, resets the states in it and locks it. It waits for another supervisor, which may still
// be stopping its daemons.
func lockDir(ctx context.Context, c SupervisorConfig) (*os.File, error) {
	for said := false; ; {
		if err := os.MkdirAll(string(c.Dir), 0o755); err != nil {
			return nil, err
		}
		dir, err := tryLock(c.Dir)
		if err == nil {
			return dir, nil
		}
		locked := errors.Is(err, unix.EWOULDBLOCK)
		if !locked && !errors.Is(err, errRemoved) {
			return nil, err
		}
		if locked && !said {
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

// tryLock resets the states under a shared lock, and then makes the lock exclusive. The shared one excludes supervisors
// of all versions, but for plugins only the exclusive one makes reports valid. Errors: unix.EWOULDBLOCK, errRemoved.
func tryLock(path mps.Dir) (*os.File, error) {
	dir, err := os.Open(string(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errRemoved
	}
	if err != nil {
		return nil, err
	}
	err = flock(dir, unix.LOCK_SH)
	if err == nil {
		err = path.ResetStates()
	}
	if err == nil {
		err = flock(dir, unix.LOCK_EX)
	}
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

// errRemoved means that another process has removed the directory.
var errRemoved = errors.New("the directory was removed")

// flock locks the directory, without waiting. Errors: unix.EWOULDBLOCK, after which it is not locked; errRemoved.
func flock(dir *os.File, how int) error {
	if err := unix.Flock(int(dir.Fd()), how|unix.LOCK_NB); err != nil {
		return err
	}
	if !mps.SameFile(dir) {
		return errRemoved
	}
	return nil
}

// awaitChange waits until the requested daemons may have changed, for the period, or until ctx ends. It ignores the
// supervisor's own reports.
func (s *supervisor) awaitChange(ctx context.Context, period time.Duration) {
	var events chan fsnotify.Event
	var errs chan error
	if s.changes != nil {
		events, errs = s.changes.Events, s.changes.Errors
	}
	tick := time.After(period)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
			return
		case <-errs: //nolint:errcheck // events were lost
			return
		case e := <-events:
			if filepath.Base(e.Name) == mps.RequestedFile || filepath.Dir(e.Name) == filepath.Clean(string(s.Dir)) {
				return
			}
		}
	}
}

// watch watches the directory and those of the daemons, and returns how often to look all the same. It is repeated at
// every look, and logs what has changed.
func (s *supervisor) watch() (period time.Duration) {
	period, why := resyncPeriod, ""
	if err := s.watchDirs(); err != nil {
		period, why = pollPeriod, err.Error()
	}
	if why != s.unwatched {
		s.Log.Info("changes of files", "noticed within", period, "why", why)
	}
	s.unwatched = why
	return period
}

func (s *supervisor) watchDirs() (err error) {
	if s.changes == nil {
		if s.changes, err = fsnotify.NewWatcher(); err != nil {
			s.changes = nil
			return fmt.Errorf("inotify: %w", err)
		}
	}
	for _, dir := range append(s.Dir.DaemonDirs(), string(s.Dir)) {
		if err := s.changes.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("inotify of %s: %w", dir, err)
		}
	}
	return nil
}

// reconcile passes the requested daemons to the workers, and lets them write what they could not report.
func (s *supervisor) reconcile(ctx context.Context) {
	requested, err := s.Dir.Requested()
	if err != nil {
		s.Log.Error("a daemon cannot be read; it stays as it is", "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	present := map[string]bool{}
	for _, d := range requested {
		present[d.ID] = true
		s.worker(ctx, d.ID).setRequested(&d)
	}
	for id, w := range s.workers {
		if !present[id] && !s.Dir.IsRequested(id) {
			w.setRequested(nil)
			continue
		}
		w.rewrite()
	}
	for _, id := range s.orphans() {
		s.clear(id)
	}
}

// worker returns the worker of the daemon, and starts it if needed. The caller holds s.mu.
func (s *supervisor) worker(ctx context.Context, id string) *worker {
	w, ok := s.workers[id]
	if !ok {
		w = newWorker(s, id)
		s.workers[id] = w
		s.group.Go(func() { w.run(ctx) })
	}
	return w
}

// orphans returns the IDs of an earlier supervisor's daemons that are not requested any more, and of directories that a
// killed program has left. The caller holds s.mu.
func (s *supervisor) orphans() []string {
	reported, err := filepath.Glob(filepath.Join(string(s.Dir), "*", "state.json"))
	if err != nil {
		return nil
	}
	ids := s.Dir.Abandoned()
	for _, file := range reported {
		ids = append(ids, filepath.Base(filepath.Dir(file)))
	}
	var out []string
	for _, id := range ids {
		if _, kept := s.workers[id]; !kept && !s.Dir.IsRequested(id) {
			out = append(out, id)
		}
	}
	return out
}

func (s *supervisor) clear(id string) {
	if err := errors.Join(unmountMemory(s.Dir, id), s.Dir.Clear(id)); err != nil {
		s.Log.Error("something of the daemon is left", "daemon", id, "err", err)
	}
}

// shareMemory creates the directory for shared memory with the mode of /dev/shm. It is below /dev/shm, where any user
// of the host can have put a link to another directory.
func (c SupervisorConfig) shareMemory() error {
	if c.SharedMemory == "" {
		return nil
	}
	if err := os.MkdirAll(c.SharedMemory, 0o755); err != nil {
		return err
	}
	dir, err := os.OpenFile(c.SharedMemory, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("shared memory of clients: %w: want a directory and no link; remove it", err)
	}
	defer dir.Close()
	return dir.Chmod(0o777 | os.ModeSticky)
}

// removeDirs removes the directory if it is empty, with the one for shared memory, and its parent if that is empty
// then.
func (s *supervisor) removeDirs() {
	if err := os.Remove(string(s.Dir)); err == nil || errors.Is(err, fs.ErrNotExist) {
		if s.SharedMemory != "" {
			_ = os.RemoveAll(s.SharedMemory)
		}
		_ = os.Remove(filepath.Dir(string(s.Dir)))
	}
}
