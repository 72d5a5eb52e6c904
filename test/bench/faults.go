// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

const (
	hangRounds   = 2                // with all GPUs healthy and with one that hangs, in turn
	hangCycles   = 500              // of fewer, the 99th percentile differs between runs
	untilLost    = 30 * time.Second // for the plugin to notice that a GPU hangs, or answers again
	standing     = 50               // claims while the driver is updated
	otherDriver  = "590.44.01"
	updateWithin = time.Minute // or the measurement has failed
)

// measureHanging prepares and releases claims on seven of eight GPUs, first while the eighth responds and then while
// all of its NVML calls hang.
func measureHanging(ctx context.Context, b *bench) error {
	machine, err := node.Attach(b.process.path(filepath.Dir(driverRoot)))
	if err != nil {
		return err
	}
	dir, err := b.scratch()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	hanging, all := b.gpus[0], b.gpus
	b.gpus = all[1:]
	defer func() { b.gpus = all; _ = machine.Heal(hanging) }()
	var healthy, beside steps
	for range hangRounds {
		if err := errors.Join(machine.Heal(hanging), sleep(ctx, untilLost), b.quiet(ctx)); err != nil {
			return err
		}
		if err := b.cycle(ctx, dir, hangCycles, 0, &healthy); err != nil {
			return err
		}
		if err := errors.Join(machine.Slow(hanging, node.AllCalls, time.Hour), sleep(ctx, untilLost),
			b.quiet(ctx)); err != nil {
			return err
		}
		if err := b.cycle(ctx, dir, hangCycles, 0, &beside); err != nil {
			return err
		}
	}
	const p99 = 0.99
	b.results["hang"] = []float64{
		beside.prepare.at(p99) / healthy.prepare.at(p99), beside.unprepare.at(p99) / healthy.unprepare.at(p99)}
	b.results["hangmedian"] = []float64{
		beside.prepare.p50() / healthy.prepare.p50(), beside.unprepare.p50() / healthy.unprepare.p50()}
	return b.deleteClaims(ctx)
}

// measureDriverUpdate loads another driver version while claims are prepared, with the minor numbers of two GPUs
// swapped. It measures the time until all CDI specs are right.
func measureDriverUpdate(ctx context.Context, b *bench) error {
	machine, err := simulator.Attach(b.process.path(filepath.Dir(driverRoot)))
	if err != nil {
		return err
	}
	results := make([]resourceapi.DeviceRequestAllocationResult, standing)
	for i := range results {
		if i < len(b.gpus) {
			results[i] = b.gpu(i)
		} else {
			results[i] = b.monitor()
		}
	}
	claims, err := b.allocated(ctx, results...)
	if err != nil {
		return err
	}
	err = b.withPrepared(ctx, claims, func() error {
		before, err := machine.View()
		if err != nil {
			return err
		}
		old := before.Profile.Driver()
		begin := time.Now()
		if err := machine.ReloadDriver(otherDriver, b.gpus[:2]); err != nil {
			return err
		}
		right := func() (bool, error) {
			if ok, err := b.specsMention(otherDriver, old, ""); !ok || err != nil {
				return false, err
			}
			for i, other := range []int{1, 0} {
				ok, err := b.specsMention(fmt.Sprintf("/dev/nvidia%d\"", before.GPUs[other].Minor),
					fmt.Sprintf("/dev/nvidia%d\"", before.GPUs[i].Minor), claims[i].Uid)
				if !ok || err != nil {
					return false, err
				}
			}
			return true, nil
		}
		for {
			ok, err := right()
			if err != nil {
				return err
			}
			if ok {
				break
			}
			if time.Since(begin) > updateWithin {
				return fmt.Errorf("CDI specs are not right %s after an update of the driver", updateWithin)
			}
			if err := sleep(ctx, 20*time.Millisecond); err != nil {
				return err
			}
		}
		b.results["update"] = []float64{time.Since(begin).Seconds()}
		return machine.ReloadDriver(old, b.gpus[:2])
	})
	return errors.Join(err, b.deleteClaims(ctx))
}

// specsMention reports whether the driver's CDI specs contain text and do not contain not; with a UID, only the specs
// of that claim.
func (b *bench) specsMention(text, not, uid string) (bool, error) {
	files, err := filepath.Glob(filepath.Join(b.process.path(cdiDir), "*"+uid+"*"))
	if err != nil {
		return false, err
	}
	found := false
	for _, file := range files {
		spec, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		if strings.Contains(string(spec), not) {
			return false, nil
		}
		found = found || strings.Contains(string(spec), text)
	}
	return found, nil
}
