// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Lock takes the locks of the devices, against other calls and other instances of the driver alike, or gives up when ctx ends.
// unlock gives them back. They are taken in one fixed order, so that two claims on the same devices never wait for each other.
func (r *Records) Lock(ctx context.Context, devices []string) (unlock func(), err error) {
	var held []*os.File
	unlock = func() {
		for _, f := range held {
			_ = f.Close() // the lock goes with the file
		}
	}
	ordered := slices.Compact(slices.Sorted(slices.Values(devices)))
	for _, device := range ordered {
		f, err := r.lock(ctx, device)
		if err != nil {
			unlock()
			return nil, fmt.Errorf("lock %s: %w", device, err)
		}
		held = append(held, f)
	}
	return unlock, nil
}

// lock opens a file of its own for every lock: flock belongs to the open file, so even two calls of one process exclude each other.
func (r *Records) lock(ctx context.Context, device string) (*os.File, error) {
	dir := filepath.Join(r.devicesDir(), device)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	fd := int(f.Fd())
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
		return f, nil
	}
	done := make(chan error, 1)
	go func() { done <- flock(fd) }()
	select {
	case err := <-done:
		if err != nil {
			_ = f.Close()
			return nil, err
		}
		return f, nil
	case <-ctx.Done():
		// The wait itself cannot be called off: whoever gets the lock in the end closes the file, which gives it back.
		go func() {
			<-done
			_ = f.Close()
		}()
		return nil, ctx.Err()
	}
}

func flock(fd int) error {
	for {
		if err := unix.Flock(fd, unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
