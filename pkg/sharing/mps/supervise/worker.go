// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// worker runs one daemon as it is requested.
type worker struct {
	*supervisor
	id      string
	log     *slog.Logger
	changed chan struct{} // signals a change of requested

	requested *mps.RequestedDaemon // under supervisor.mu; nil: the daemon is to end
	state     mps.DaemonState      // the last report
	lastError string               // why the daemon did not run the last time

	writing   sync.Mutex       // of the report's file
	unwritten *mps.DaemonState // under writing; the last report, if it could not be written
}

func newWorker(s *supervisor, id string) *worker {
	return &worker{supervisor: s, id: id, log: s.Log.With("daemon", id), changed: make(chan struct{}, 1)}
}

// setRequested sets the requested daemon; nil ends it. The caller holds the supervisor's lock.
func (w *worker) setRequested(d *mps.RequestedDaemon) {
	if w.requested != nil && d != nil && reflect.DeepEqual(*w.requested, *d) || w.requested == nil && d == nil {
		return
	}
	w.requested = d
	w.wake()
}

// wake makes the worker read the requested daemon.
func (w *worker) wake() {
	select {
	case w.changed <- struct{}{}:
	default: // already signalled
	}
}

// target returns the requested daemon, nil if it is to end.
func (w *worker) target(ctx context.Context) *mps.RequestedDaemon {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	return w.requested
}

// Back-off of restarts: the first pause, and the longest one. It starts again after a run of stableUptime.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
	stableUptime = 30 * time.Second
)

// run runs the daemon until it is not requested any more, or ctx ends.
func (w *worker) run(ctx context.Context) {
	w.resume()
	pause := firstPause
	for {
		d := w.target(ctx)
		if d == nil {
			if w.end(ctx) {
				return
			}
			continue
		}
		began := time.Now()
		err := w.runDaemon(ctx, *d)
		if err == nil {
			pause = firstPause
			continue
		}
		if w.state.Ready {
			w.state.Restarts++
		}
		if time.Since(began) > stableUptime {
			pause = firstPause
		}
		w.log.Error("the daemon does not run; it is started again", "err", err, "pause", pause)
		w.lastError = err.Error()
		w.report(*d, mps.DaemonState{Message: w.lastError})
		select {
		case <-ctx.Done():
		case <-w.changed:
		case <-time.After(pause):
			pause = min(2*pause, longestPause)
		}
	}
}

// resume continues the restart count of an earlier supervisor.
func (w *worker) resume() {
	before, err := w.Dir.State(w.id)
	if err != nil {
		w.log.Error("what was reported before cannot be read", "err", err)
	}
	w.state.Restarts = before.Restarts
}

// end cleans up after a daemon that is to end. It reports whether the worker is done.
func (w *worker) end(ctx context.Context) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.requested == nil:
		w.clear(w.id)
	case ctx.Err() == nil:
		return false // requested again
	default:
		w.reportStopped(*w.requested)
	}
	delete(w.workers, w.id)
	return true
}

// runDaemon runs one process of the daemon. It returns nil when the process was stopped because another or none is
// requested, and an error when it has failed.
func (w *worker) runDaemon(ctx context.Context, d mps.RequestedDaemon) error {
	w.report(d, mps.DaemonState{Message: w.lastError}) // a failing daemon keeps its message until it is ready
	err := w.runProcess(ctx, d, d.Daemon)
	if errors.Is(err, errNoMultiUser) {
		w.log.Info("the control program does not know -multiuser-server: clients of different users take turns")
		single := d.Daemon
		single.MultiUser = false
		err = w.runProcess(ctx, d, single)
	}
	return err
}

// runProcess is runDaemon with a process that may serve fewer users than requested. Error: errNoMultiUser.
func (w *worker) runProcess(ctx context.Context, d mps.RequestedDaemon, as mps.Daemon) error {
	r, err := start(w.Dir, driverroot.Root{Here: w.DriverRoot}, as)
	if err != nil {
		return err
	}
	defer r.stop()
	if err := w.waitReady(ctx, r, d); err != nil {
		return err
	}
	serving, end := context.WithCancel(ctx)
	defer end()
	go func() {
		if err := r.startServer(serving); err != nil && serving.Err() == nil {
			w.log.Info("no server before the first client", "err", err)
		}
	}()
	return w.watchProcess(ctx, r, d)
}

// waitReady waits until the daemon answers, and sets its limits. It returns nil early when another process is
// requested.
func (w *worker) waitReady(ctx context.Context, r *process, d mps.RequestedDaemon) error {
	life, stop := w.whileRequested(ctx, d)
	defer stop()
	err := r.await(life, d.Daemon)
	switch {
	case life.Err() != nil:
		return nil
	case err == nil:
		w.log.Info("the daemon serves", "pid", r.cmd.Process.Pid, "gpus", d.GPUs)
		w.lastError = ""
		w.report(d, r.serves(d.Daemon))
	}
	return err
}

// whileRequested returns a context that ends when another process is requested, or none. Until stop is called it
// consumes the signals of changed; stop signals again if it has consumed one.
func (w *worker) whileRequested(ctx context.Context, d mps.RequestedDaemon) (life context.Context, stop func()) {
	life, cancel := context.WithCancel(ctx)
	done, taken := make(chan struct{}), false
	go func() {
		defer close(done)
		for {
			select {
			case <-life.Done():
				return
			case <-w.changed:
				taken = true
			}
			if now := w.target(ctx); now == nil || !sameProcess(now.Daemon, d.Daemon) {
				cancel()
			}
		}
	}()
	return life, func() {
		cancel()
		<-done
		if taken {
			w.wake()
		}
	}
}

// sameProcess reports whether a process of one daemon can serve the other: they differ in limits only.
func sameProcess(a, b mps.Daemon) bool {
	a.ThreadPercentage, a.Memory, b.ThreadPercentage, b.Memory = 0, nil, 0, nil
	return reflect.DeepEqual(a, b)
}

// failurePeriod is the minimum time between reports of failed servers, because clients can make the daemon print them.
const failurePeriod = 10 * time.Second

// watchProcess updates the limits of the process until it ends. It reports the first failure of a server at once, and
// later ones together. It returns nil if the process is to end, and an error if it has ended itself.
func (w *worker) watchProcess(ctx context.Context, r *process, running mps.RequestedDaemon) error {
	var retry, pause <-chan time.Time
	failed := r.serverEnds.failed // nil during the pause
	for {
		select {
		case <-r.ended:
			return r.exitError()
		case <-ctx.Done():
		case <-w.changed:
		case <-retry:
		case <-failed:
			failed, pause = nil, time.After(failurePeriod)
		case <-pause:
			failed, pause = r.serverEnds.failed, nil
			continue
		}
		d := w.target(ctx)
		if d == nil || !sameProcess(d.Daemon, running.Daemon) {
			w.log.Info("the daemon is to end")
			if ctx.Err() != nil {
				w.reportStopped(running)
			}
			return nil
		}
		retry = nil
		if err := r.setLimits(ctx, d.Daemon, running.Daemon); err != nil && ctx.Err() == nil {
			// The daemon goes on: it has clients.
			w.log.Error("limits could not be changed", "err", err)
			state := r.serves(d.Daemon)
			state.Ready, state.Message = false, err.Error()
			w.report(*d, state)
			retry = time.After(longestPause)
			running.Daemon = unknownLimits(running.Daemon)
			continue
		}
		running = *d
		w.report(running, r.serves(running.Daemon))
	}
}

// serves returns the state of the process when it serves clients of the daemon.
func (r *process) serves(d mps.Daemon) mps.DaemonState {
	failures, last := r.serverEnds.failures()
	return mps.DaemonState{PID: r.cmd.Process.Pid, Ready: true, SingleUser: d.MultiUser && !r.multiUser,
		ServerFailures: failures, ServerFailure: last}
}

// reportStopped reports that the daemon ends with its supervisor, if it is still requested.
func (w *worker) reportStopped(d mps.RequestedDaemon) {
	if !w.Dir.IsRequested(w.id) {
		return
	}
	if w.state.Ready {
		w.state.Restarts++
	}
	w.report(d, mps.DaemonState{Message: "its supervisor was stopped: is its pod running on this node?"})
}

// report writes the state of the daemon if it has changed.
func (w *worker) report(d mps.RequestedDaemon, s mps.DaemonState) {
	s.Digest, s.Restarts = d.Digest, w.state.Restarts
	if d.SharedMemory != 0 {
		s.SharedMemory = w.Dir.SharedMemory(w.id)
	}
	if s == w.state {
		return
	}
	w.state = s
	w.writing.Lock()
	defer w.writing.Unlock()
	w.write(s)
}

// rewrite writes the last report if it could not be written before, such as while the disk was full.
func (w *worker) rewrite() {
	w.writing.Lock()
	defer w.writing.Unlock()
	if w.unwritten != nil {
		w.write(*w.unwritten)
	}
}

// write writes the report. The caller holds w.writing.
func (w *worker) write(s mps.DaemonState) {
	w.unwritten = nil
	if err := w.Dir.Report(w.id, s); err != nil {
		w.log.Error("the state of the daemon could not be reported; it is tried again", "err", err)
		w.unwritten = &s
	}
}
