// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/gpudra/gpu-dra-driver/internal/doctor"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps/supervise"
)

// daemon runs an MPS daemon with limits, by the driver's own supervisor, and ends it. The compute mode stays as it is.
func (e *examiner) daemon(ctx context.Context) {
	const what = "an MPS daemon with limits"
	g, ok := e.whole()
	switch {
	case e.report.Driver.MPSControl == "":
		e.say(skipped, what, "the driver root has no nvidia-cuda-mps-control")
	case !ok:
		e.say(skipped, what, "no GPU is whole and young enough")
	default:
		e.expect(e.superviseDaemon(ctx, g), what, "started, limited to half of %s, changed while it runs, and ended", g.Name)
	}
}

// whole is a GPU that is not partitioned and can limit clients of MPS.
func (e *examiner) whole() (doctor.GPU, bool) {
	for _, g := range e.report.GPUs {
		if g.Error == "" && !g.MIG.Enabled && g.MPSLimits {
			return g, true
		}
	}
	return doctor.GPU{}, false
}

// patience is how long a daemon may take to start, to change and to end.
const patience = time.Minute

func (e *examiner) superviseDaemon(ctx context.Context, g doctor.GPU) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	dir := mps.Dir(filepath.Join(e.dir, "plugin/mps"))
	root := e.driverRoot
	if e.simulateDir != "" {
		root = filepath.Join(e.simulateDir, "root")
	}
	ended := make(chan error, 1)
	go func() {
		ended <- supervise.Run(ctx, supervise.Config{Dir: dir, DriverRoot: root, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	}()
	defer func() {
		cancel() // which ends the daemon
		err = errors.Join(err, <-ended)
	}()
	id := gpu.UUID(fmt.Sprint(g.Attributes["uuid"]))
	d := mps.Daemon{ID: g.Name, GPUs: []gpu.UUID{id}, ThreadPercentage: 50, Memory: map[gpu.UUID]uint64{id: g.Memory / 2}}
	for _, percentage := range []int{50, 30} {
		d.ThreadPercentage = percentage
		if err := dir.Want(d); err != nil {
			return err
		}
		if err := dir.Await(ctx, d.ID, patience); err != nil {
			return err
		}
	}
	if err := dir.Unwant(d.ID); err != nil {
		return err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, err := os.Stat(dir.Pipe(d.ID)); errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("it has not ended within %s", patience)
}

// changes sets what claims may set of a GPU, and sets it back.
func (e *examiner) changes(ctx context.Context) {
	const timeSlice, mode = "nvidia-smi compute-policy --set-timeslice", "nvidia-smi -c"
	g, ok := e.whole()
	if !e.allowChanges || !ok || e.report.Driver.NvidiaSMI == "" {
		why := "it changes settings: -allow-changes"
		if e.allowChanges {
			why = "no GPU is whole, or there is no nvidia-smi"
		}
		e.say(skipped, timeSlice, "%s", why)
		e.say(skipped, mode, "%s", why)
		return
	}
	uuid := fmt.Sprint(g.Attributes["uuid"])
	_, err := e.smi(ctx, "compute-policy", "-i", uuid, "--set-timeslice", "1")
	undo := context.WithoutCancel(ctx) // also when somebody gives up in between
	_, back := e.smi(undo, "compute-policy", "-i", uuid, "--set-timeslice", "0")
	e.expect(errors.Join(err, back), timeSlice, "set to Short, and back")
	_, err = e.smi(ctx, "-i", uuid, "-c", "EXCLUSIVE_PROCESS")
	_, back = e.smi(undo, "-i", uuid, "-c", "DEFAULT")
	e.expect(errors.Join(err, back), mode, "set to EXCLUSIVE_PROCESS, and back to DEFAULT")
}
