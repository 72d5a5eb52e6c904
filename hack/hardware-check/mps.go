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

// daemon runs an MPS daemon with limits through the driver's supervisor, and stops it. It does not change the compute
// mode.
func (e *checker) daemon(ctx context.Context) {
	const what = "an MPS daemon with limits"
	g, ok := e.unpartitionedGPU()
	switch {
	case e.report.Driver.MPSControl == "":
		e.add(skipped, what, "the driver root has no nvidia-cuda-mps-control")
	case !ok:
		e.add(skipped, what, "no unpartitioned GPU supports limits of MPS clients")
	default:
		e.expect(e.superviseDaemon(ctx, g), what, "started, limited to half of %s, changed while it runs, and ended",
			g.Name)
	}
}

// unpartitionedGPU returns a GPU without partitions that can limit MPS clients.
func (e *checker) unpartitionedGPU() (doctor.GPU, bool) {
	for _, g := range e.report.GPUs {
		if g.Error == "" && !g.MIG.Enabled && g.MPSLimits {
			return g, true
		}
	}
	return doctor.GPU{}, false
}

// timeout limits the start, each change and the end of a daemon.
const timeout = time.Minute

func (e *checker) superviseDaemon(ctx context.Context, g doctor.GPU) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	dir := mps.Dir(filepath.Join(e.dir, "plugin/mps"))
	root := e.driverRoot
	if e.simulateDir != "" {
		root = filepath.Join(e.simulateDir, "root")
	}
	ended := make(chan error, 1)
	go func() {
		ended <- supervise.Run(ctx, supervise.Config{Dir: dir, DriverRoot: root,
			Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	}()
	defer func() {
		cancel() // ends the daemon
		err = errors.Join(err, <-ended)
	}()
	id := gpu.UUID(fmt.Sprint(g.Attributes["uuid"]))
	d := mps.Daemon{ID: g.Name, GPUs: []gpu.UUID{id}, ThreadPercentage: 50,
		Memory: map[gpu.UUID]uint64{id: g.Memory / 2}}
	for _, percentage := range []int{50, 30} {
		d.ThreadPercentage = percentage
		if err := dir.Request(d); err != nil {
			return err
		}
		waiting, cancel := context.WithTimeout(ctx, timeout)
		err := dir.Await(waiting, d.ID)
		cancel()
		if err != nil {
			return err
		}
	}
	if err := dir.Release(d.ID); err != nil {
		return err
	}
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, err := os.Stat(dir.Pipe(d.ID)); errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("it has not ended within %s", timeout)
}

// settings applies the settings that claims may request of a GPU, and reverts them.
func (e *checker) settings(ctx context.Context) {
	const timeSlice, mode = "nvidia-smi compute-policy --set-timeslice", "nvidia-smi -c"
	g, ok := e.unpartitionedGPU()
	if !e.allowChanges || !ok || e.report.Driver.NvidiaSMI == "" {
		why := "it changes settings: -allow-changes"
		if e.allowChanges {
			why = "no GPU is whole, or there is no nvidia-smi"
		}
		e.add(skipped, timeSlice, "%s", why)
		e.add(skipped, mode, "%s", why)
		return
	}
	uuid := fmt.Sprint(g.Attributes["uuid"])
	_, err := e.smi(ctx, "compute-policy", "-i", uuid, "--set-timeslice", "1")
	undo := context.WithoutCancel(ctx) // also after cancellation
	_, back := e.smi(undo, "compute-policy", "-i", uuid, "--set-timeslice", "0")
	e.expect(errors.Join(err, back), timeSlice, "set to Short, and back")
	_, err = e.smi(ctx, "-i", uuid, "-c", "EXCLUSIVE_PROCESS")
	_, back = e.smi(undo, "-i", uuid, "-c", "DEFAULT")
	e.expect(errors.Join(err, back), mode, "set to EXCLUSIVE_PROCESS, and back to DEFAULT")
}
