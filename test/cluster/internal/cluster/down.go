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

// killTimeout is how long a machine with all its processes may take to end.
const killTimeout = 30 * time.Second

// Down ends the cluster and removes everything it made. It may be repeated,
// and it is no error if there is no such cluster.
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

// undo undoes whatever a start of the cluster may have made, in any stage.
// Links, mounts and processes are the machines' and go with them; control
// groups can be removed when the processes are gone; the folder is last, for
// it says what there is to undo.
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
	// The last one takes the folder for all with it; others keep it.
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
