// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Lock takes the locks of the GPUs that the devices are or are parts of, against other calls and other instances of the driver alike, or gives up when ctx ends.
// unlock gives them back. They are taken in one fixed order, so that two claims on the same devices never wait for each other.
func (r *Records) Lock(ctx context.Context, devices []string) (unlock func(), err error) {
	var held []func()
	unlock = func() {
		for _, release := range held {
			release()
		}
	}
	for _, device := range gpusOf(devices) {
		release, err := r.lock(ctx, device)
		if err != nil {
			unlock()
			return nil, fmt.Errorf("lock %s: %w", device, err)
		}
		held = append(held, release)
	}
	return unlock, nil
}

// lock waits for the turn of this call among those of this process, which are told when it comes, and then for other processes,
// which there are only during an update.
func (r *Records) lock(ctx context.Context, device string) (release func(), err error) {
	place, _ := r.turns.LoadOrStore(device, make(chan struct{}, 1))
	turn := place.(chan struct{})
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f, err := r.lockFile(ctx, device)
	if err != nil {
		<-turn
		return nil, err
	}
	return func() {
		_ = f.Close() // the lock goes with the file
		<-turn
	}, nil
}

// A held lock is asked for again after lockPollMin, then less and less often up to lockPollMax: decisions take milliseconds. Waiting
// in flock itself could not be called off, and would cost a thread for each wait on a holder that hangs.
const (
	lockPollMin = time.Millisecond
	lockPollMax = 20 * time.Millisecond
)

// lockFile opens a file of its own for every lock: flock belongs to the open file.
func (r *Records) lockFile(ctx context.Context, device string) (*os.File, error) {
	dir := filepath.Join(r.devicesDir(), device)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for pause := lockPollMin; ; pause = min(2*pause, lockPollMax) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}
