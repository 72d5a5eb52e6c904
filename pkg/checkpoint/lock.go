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

// Lock locks the physical GPU of each device against other calls and other instances of the driver, or fails when ctx
// ends. unlock releases the locks. They are taken in one fixed order, so that two claims on the same devices cannot
// deadlock.
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

// lock first waits for other calls of this process, through a channel, and then for other processes, which exist only
// during an update.
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

// A held lock is tried again after lockPollMin, with increasing pauses up to lockPollMax, because it is usually held
// for milliseconds. A blocking flock could not be cancelled, and would occupy a thread for each wait.
const (
	lockPollMin = time.Millisecond
	lockPollMax = 20 * time.Millisecond
)

// lockFile opens the file anew for every lock, because a flock belongs to the open file.
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
