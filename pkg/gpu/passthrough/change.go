// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// writer writes into a file of sysfs, unless the context of the change has ended.
type writer func(file, text string) error

// running is a change of a function that has not ended. A write to sysfs cannot be interrupted: one that blocks
// occupies a thread, and lasts longer than the call that began it.
type running struct {
	ended chan struct{}
	mu    sync.Mutex
	file  string // that it writes, or has written last
}

func (r *running) now(file string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.file = file
}

// settled waits until the change has ended.
func (r *running) settled(ctx context.Context) error {
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return r.busy(ctx)
	}
}

// busy is the error of a call whose context has ended before the change.
func (r *running) busy(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Errorf("write %s: the kernel has not finished: %w: %w", r.file, gpu.ErrBusy, context.Cause(ctx))
}

// changes are the running changes, by the directory of the function.
var changes sync.Map

// change runs do, which changes the function, once no other change of it runs, and waits for it until ctx ends. Errors
// name what is done: ErrGone, gpu.ErrBusy, others.
func (b Bus) change(ctx context.Context, at gpu.PCIAddress, what string, do func(writer) error) error {
	if err := b.await(ctx, at, do); err != nil {
		if !exists(b.function(at, "")) && !errors.Is(err, ErrGone) {
			err = fmt.Errorf("%w: %w", ErrGone, err)
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Settled waits until ctx ends for changes of the functions that this program has begun. Error: gpu.ErrBusy.
func (b Bus) Settled(ctx context.Context, functions []gpu.PCIFunction) error {
	for _, f := range functions {
		if earlier, found := changes.Load(b.function(f.PCI, "")); found {
			if err := earlier.(*running).settled(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b Bus) await(ctx context.Context, at gpu.PCIAddress, do func(writer) error) error {
	dir := b.function(at, "")
	mine := &running{ended: make(chan struct{}), file: dir}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		earlier, found := changes.LoadOrStore(dir, mine)
		if !found {
			break
		}
		if err := earlier.(*running).settled(ctx); err != nil {
			return err
		}
	}
	result := make(chan error, 1)
	go func() {
		defer close(mine.ended)
		defer changes.Delete(dir)
		if !exists(dir) {
			result <- ErrGone
			return
		}
		result <- do(func(file, text string) error {
			if ctx.Err() != nil { // an earlier write has blocked
				return context.Cause(ctx)
			}
			mine.now(file)
			return b.write(file, text)
		})
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return mine.busy(ctx)
	}
}

func (b Bus) write(file, text string) error {
	to := b.Write
	if to == nil {
		to = writeSysfs
	}
	err := to(file, text)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EBUSY):
		return fmt.Errorf("write %s: %w: %w", file, gpu.ErrBusy, err)
	}
	return fmt.Errorf("write %s: %w", file, err)
}

// writeSysfs writes the text at once, as the kernel demands, and creates no file.
func writeSysfs(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return errors.Unwrap(err)
	}
	_, err = f.WriteString(text)
	if err != nil {
		err = errors.Unwrap(err)
	}
	return errors.Join(err, f.Close())
}
