// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cgroups"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/process"
)

// killTimeout is for processes that the kernel cannot end. A machine has ended when all its processes have, which takes
// a busy host a while.
const killTimeout = 5 * time.Minute

// Down stops the cluster and removes everything it created. It is idempotent.
func Down(ctx context.Context, p Place) error {
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := undo(p); err != nil {
		return fmt.Errorf("end cluster %s: %w", p.Name, err)
	}
	return nil
}

// undo removes everything that a start may have created, at any stage. Links, mounts and processes end with the
// machines. Control groups can only be removed after the processes. The folder goes last, because it records what to
// remove.
func undo(p Place) error {
	if err := endMachines(p); err != nil {
		return err
	}
	layout, err := cgroups.Detect()
	if err != nil {
		return err
	}
	if err := layout.Remove(p.cgroup("")); err != nil {
		return err
	}
	if err := os.RemoveAll(p.Dir()); err != nil {
		return fmt.Errorf("remove folder of the cluster: %w", err)
	}
	// Succeeds only for the last cluster.
	if err := os.Remove(p.State); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("remove folder for state: %w", err)
	}
	return nil
}

func endMachines(p Place) error {
	found, err := machine.Find(p.Dir())
	if err != nil {
		return err
	}
	recorded, err := recordedMachines(p)
	if err != nil {
		return err
	}
	for _, r := range recorded {
		if !slices.ContainsFunc(found, func(f process.Record) bool { return f.PID == r.PID }) {
			found = append(found, r)
		}
	}
	var wait sync.WaitGroup
	failed := make([]error, len(found))
	for i, r := range found {
		wait.Go(func() { failed[i] = r.Kill(killTimeout) })
	}
	wait.Wait()
	return errors.Join(failed...)
}

func recordedMachines(p Place) ([]process.Record, error) {
	dirs, err := filepath.Glob(filepath.Join(p.Dir(), "*"))
	if err != nil {
		return nil, err
	}
	var records []process.Record
	for _, dir := range dirs {
		record, err := machine.Load(dir)
		if errors.Is(err, process.ErrGone) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		records = append(records, record)
	}
	return records, nil
}
