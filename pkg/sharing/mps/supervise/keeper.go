// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"log/slog"
	"reflect"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// keeper keeps one daemon as it is wanted.
type keeper struct {
	*supervisor
	id      string
	log     *slog.Logger
	changed chan struct{} // there is something new in wanted

	wanted *mps.Asked // under supervisor.mu; nil: it is to end
	state  mps.State  // what was reported last
	why    string     // it did not run the last time
}

func newKeeper(s *supervisor, id string) *keeper {
	return &keeper{supervisor: s, id: id, log: s.Log.With("daemon", id), changed: make(chan struct{}, 1)}
}

// want says what is wanted. The caller holds the supervisor's lock.
func (k *keeper) want(d *mps.Asked) {
	if k.wanted != nil && d != nil && reflect.DeepEqual(*k.wanted, *d) || k.wanted == nil && d == nil {
		return
	}
	k.wanted = d
	k.tell()
}

// tell lets the keeper look what is wanted.
func (k *keeper) tell() {
	select {
	case k.changed <- struct{}{}:
	default: // it has not looked yet
	}
}

// target is what is wanted now, nil when the daemon is to end.
func (k *keeper) target(ctx context.Context) *mps.Asked {
	k.mu.Lock()
	defer k.mu.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	return k.wanted
}

// How long a keeper waits before it starts a daemon again that ended: the first time, and at most. One that has been up for long is
// started at once.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
	longUp       = 30 * time.Second
)

// run keeps the daemon until it is not wanted any more, or ctx ends.
func (k *keeper) run(ctx context.Context) {
	k.resume()
	pause := firstPause
	for {
		d := k.target(ctx)
		if d == nil {
			if k.end(ctx) {
				return
			}
			continue
		}
		began := time.Now()
		err := k.live(ctx, *d)
		if err == nil {
			pause = firstPause
			continue
		}
		if k.state.Ready {
			k.state.Restarts++
		}
		if time.Since(began) > longUp {
			pause = firstPause
		}
		k.log.Error("the daemon does not run; it is started again", "err", err, "pause", pause)
		k.why = err.Error()
		k.report(*d, mps.State{Message: k.why})
		select {
		case <-ctx.Done():
		case <-k.changed:
		case <-time.After(pause):
			pause = min(2*pause, longestPause)
		}
	}
}

// resume counts on from an earlier supervisor, with which its daemons have ended.
func (k *keeper) resume() {
	before, err := k.Dir.State(k.id)
	if err != nil {
		k.log.Error("what was reported before cannot be read", "err", err)
	}
	k.state.Restarts = before.Restarts
}

// end clears up after a daemon that is not wanted. It says whether the keeper is done.
func (k *keeper) end(ctx context.Context) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.wanted == nil:
		k.clear(k.id)
	case ctx.Err() == nil:
		return false // wanted again
	default:
		k.orphan(*k.wanted)
	}
	delete(k.keepers, k.id)
	return true
}

// live is the life of one process of the daemon. It returns nil when the process has been ended because another or none is wanted,
// an error when it has failed.
func (k *keeper) live(ctx context.Context, d mps.Asked) error {
	k.report(d, mps.State{Message: k.why}) // until it does, it is not said to be just starting
	r, err := start(k.Dir, driver(k.DriverRoot), d.Daemon)
	if err != nil {
		return err
	}
	defer r.stop()
	if err := k.begin(ctx, r, d); err != nil {
		return err
	}
	serving, end := context.WithCancel(ctx)
	defer end()
	go func() {
		if err := r.startServer(serving); err != nil && serving.Err() == nil {
			k.log.Info("no server before the first client", "err", err)
		}
	}()
	return k.hold(ctx, r, d)
}

// begin waits until the daemon answers, and sets its limits. It stops waiting, without an error, when another process is wanted.
func (k *keeper) begin(ctx context.Context, r *running, d mps.Asked) error {
	life, stop := k.whileWanted(ctx, d)
	defer stop()
	err := r.await(life)
	if err == nil {
		err = r.setLimits(life, d.Daemon, mps.Daemon{GPUs: d.GPUs})
	}
	switch {
	case life.Err() != nil:
		return nil
	case err == nil:
		k.log.Info("the daemon serves", "pid", r.cmd.Process.Pid, "gpus", d.GPUs)
		k.why = ""
		k.report(d, mps.State{PID: r.cmd.Process.Pid, Ready: true})
	}
	return err
}

// whileWanted is a context that ends when another process is wanted, or none. Until it is stopped it takes the words from k.changed;
// if it has taken one there is one again then.
func (k *keeper) whileWanted(ctx context.Context, d mps.Asked) (life context.Context, stop func()) {
	life, cancel := context.WithCancel(ctx)
	done, taken := make(chan struct{}), false
	go func() {
		defer close(done)
		for {
			select {
			case <-life.Done():
				return
			case <-k.changed:
				taken = true
			}
			if now := k.target(ctx); now == nil || !sameProcess(now.Daemon, d.Daemon) {
				cancel()
			}
		}
	}()
	return life, func() {
		cancel()
		<-done
		if taken {
			k.tell()
		}
	}
}

// sameProcess says whether a process that runs the one can become the other.
func sameProcess(a, b mps.Daemon) bool {
	a.ThreadPercentage, a.Memory, b.ThreadPercentage, b.Memory = 0, nil, 0, nil
	return reflect.DeepEqual(a, b)
}

// hold returns when the process has ended, with how, or is to end, with nil. Meanwhile it gives the process new limits.
func (k *keeper) hold(ctx context.Context, r *running, is mps.Asked) error {
	var retry <-chan time.Time
	for {
		select {
		case <-r.ended:
			return r.howItEnded()
		case <-ctx.Done():
		case <-k.changed:
		case <-retry:
		}
		d := k.target(ctx)
		if d == nil || !sameProcess(d.Daemon, is.Daemon) {
			k.log.Info("the daemon is to end")
			if ctx.Err() != nil {
				k.orphan(is)
			}
			return nil
		}
		retry = nil
		if err := r.setLimits(ctx, d.Daemon, is.Daemon); err != nil && ctx.Err() == nil {
			// The daemon goes on: it has clients.
			k.log.Error("limits could not be changed", "err", err)
			k.report(*d, mps.State{PID: r.cmd.Process.Pid, Message: err.Error()})
			retry = time.After(longestPause)
			is.Daemon = unknownLimits(is.Daemon)
			continue
		}
		is = *d
		k.report(is, mps.State{PID: r.cmd.Process.Pid, Ready: true})
	}
}

// orphan reports that the daemon ends with its supervisor, if it is still wanted.
func (k *keeper) orphan(d mps.Asked) {
	if !k.Dir.IsWanted(k.id) {
		return
	}
	if k.state.Ready {
		k.state.Restarts++
	}
	k.report(d, mps.State{Message: "its supervisor was stopped: is its pod running on this node?"})
}

// report says what has been made of the daemon, unless that has been said.
func (k *keeper) report(d mps.Asked, s mps.State) {
	s.Wanted, s.Restarts = d.Wanted, k.state.Restarts
	if s == k.state {
		return
	}
	k.state = s
	if err := k.Dir.Report(k.id, s); err != nil {
		k.log.Error("the state of the daemon could not be reported", "err", err)
	}
}
