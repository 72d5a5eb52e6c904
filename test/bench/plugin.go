// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
)

const (
	idleTime      = time.Minute
	startTime     = 30 * time.Second // in which the slices of a new plugin are published and compared
	backToBack    = 200
	others        = 200
	rounds        = 2  // each without and with other claims
	cycles        = 75 // of one claim in each round without other claims
	crowdedCycles = 30 // of one claim in each round with other claims, and as many without, after the same pauses
	// pause before each of those, in which containerd reads the CDI directory
	cdiPause = 400 * time.Millisecond
	// claimPause is how long a claim stays prepared.
	claimPause = 10 * time.Millisecond
	// statusesPause is how long after the last call the driver has begun to write the status of prepared claims.
	statusesPause = 3500 * time.Millisecond
	burst         = 8
)

// measureIdle measures the idle plugin, before anything was prepared. The plugin has just been started.
func measureIdle(ctx context.Context, b *bench) error {
	if err := sleep(ctx, startTime); err != nil {
		return err
	}
	begin, err := b.process.cpu()
	if err != nil {
		return err
	}
	if err := sleep(ctx, idleTime); err != nil {
		return err
	}
	end, err := b.process.cpu()
	if err != nil {
		return err
	}
	memory, err := b.process.memory()
	b.results["cpu"] = []float64{ms(end-begin) / idleTime.Minutes()}
	b.results["rss"], b.results["anon"] = []float64{memory.rss}, []float64{memory.anon}
	return err
}

// measureBackToBack prepares and releases one claim after the other without a pause.
func measureBackToBack(ctx context.Context, b *bench) error {
	claims, err := b.allocatedGPUs(ctx, backToBack)
	if err != nil {
		return err
	}
	var prepares samples
	used := processorTimes{}
	begin := time.Now()
	if err := used.during(func() (err error) {
		prepares, err = b.eachInTurn(ctx, claims, func() error { return nil })
		return err
	}); err != nil {
		return err
	}
	b.results["backtoback"] = []float64{prepares.p50()}
	b.results["backtobackall"] = []float64{ms(time.Since(begin)) / backToBack}
	for _, t := range used.p50s(claimPrograms...) {
		b.results["backtobackcpu"] = append(b.results["backtobackcpu"], t/backToBack)
	}
	memory, err := b.process.memory()
	if err == nil && len(b.results["rss"]) == 1 {
		b.results["rss"], b.results["anon"] = append(b.results["rss"], memory.rss),
			append(b.results["anon"], memory.anon)
	}
	return errors.Join(err, b.deleteClaims(ctx))
}

// steps are the durations of a claim's steps, measured together so that they can be subtracted from each other.
type steps struct{ get, write, call, prepare, unprepare samples }

// measureOneClaim times each step of a single claim, alternately alone, alone after pauses, and after the same pauses
// with many other claims prepared, so that other load on the machine affects all equally.
func measureOneClaim(ctx context.Context, b *bench) error {
	dir, err := b.scratch()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	monitors := make([]resourceapi.DeviceRequestAllocationResult, others)
	for i := range monitors {
		monitors[i] = b.monitor()
	}
	many, err := b.allocated(ctx, monitors...)
	if err != nil {
		return err
	}
	if err := b.statusTime(ctx, many); err != nil {
		return err
	}
	var alone, paused, among steps
	var parses samples
	for range rounds {
		if err := b.quiet(ctx); err != nil {
			return err
		}
		if err := b.cycle(ctx, dir, cycles, 0, &alone); err != nil {
			return err
		}
		if err := b.cycle(ctx, dir, crowdedCycles, cdiPause, &paused); err != nil {
			return err
		}
		if err := b.withPrepared(ctx, many, func() error {
			parsed, err := b.parseCDI()
			parses = append(parses, parsed...)
			return errors.Join(err, b.cycle(ctx, dir, crowdedCycles, cdiPause, &among))
		}); err != nil {
			return err
		}
	}
	b.results["prepare"] = []float64{alone.prepare.p50()}
	b.results["get"], b.results["write"], b.results["call"] = []float64{alone.get.p50()}, []float64{alone.write.p50()},
		[]float64{alone.call.p50()}
	b.results["preparepaused"] = []float64{paused.prepare.p50()}
	b.results["prepare200"] = []float64{among.prepare.p50()}
	b.results["parse200"] = []float64{parses.p50()}
	return b.deleteClaims(ctx)
}

// cycle takes n new claims through all steps, with a pause before each claim.
func (b *bench) cycle(ctx context.Context, dir string, n int, pause time.Duration, s *steps) error {
	claims, err := b.allocatedGPUs(ctx, n)
	if err != nil {
		return err
	}
	for _, claim := range claims {
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		if err := b.steps(ctx, dir, claim, s); err != nil {
			return err
		}
	}
	return nil
}

// steps takes a claim through all steps. Until it is prepared there is no pause: waking a processor takes as long as a
// step.
func (b *bench) steps(ctx context.Context, dir string, claim *drapb.Claim, s *steps) error {
	for _, step := range []struct {
		do   func() (time.Duration, error)
		took *samples
	}{
		// warm-up, not recorded
		{func() (time.Duration, error) { return b.get(ctx, claim) }, &samples{}},
		{func() (time.Duration, error) { return b.get(ctx, claim) }, &s.get},
		{func() (time.Duration, error) { return writeDurably(dir) }, &s.write},
		{func() (time.Duration, error) { return b.prepare(ctx) }, &s.call},
		{func() (time.Duration, error) { return b.prepare(ctx, claim) }, &s.prepare},
		{func() (time.Duration, error) { return 0, sleep(ctx, claimPause) }, &samples{}},
		{func() (time.Duration, error) { return b.unprepare(ctx, claim) }, &s.unprepare},
	} {
		took, err := step.do()
		if err != nil {
			return err
		}
		*step.took = append(*step.took, took)
	}
	return nil
}

// withPrepared prepares the claims, calls do when their status is written and the machine is quiet, and releases them.
func (b *bench) withPrepared(ctx context.Context, claims []*drapb.Claim, do func() error) error {
	return b.between(ctx, claims, func() error {
		if err := errors.Join(sleep(ctx, statusesPause), b.quiet(ctx)); err != nil {
			return err
		}
		return do()
	})
}

// between prepares the claims, calls do at once, and releases them.
func (b *bench) between(ctx context.Context, claims []*drapb.Claim, do func() error) error {
	for _, claim := range claims {
		if _, err := b.prepare(ctx, claim); err != nil {
			return err
		}
	}
	err := do()
	for _, claim := range claims {
		_, failed := b.unprepare(ctx, claim)
		err = errors.Join(err, failed)
	}
	return err
}

// quiet waits until the machine is idle for half a second: containerd reads all CDI files again after each change,
// which with hundreds of files takes seconds after the last call. It gives up soon on a machine with other load.
func (b *bench) quiet(ctx context.Context) error {
	const look, little, timeout = 500 * time.Millisecond, 0.2, 12 * time.Second // little: of one processor
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
		before, err := busy()
		if err != nil {
			return err
		}
		if err := sleep(ctx, look); err != nil {
			return err
		}
		after, err := busy()
		if err != nil || after-before < time.Duration(little*float64(look)) {
			return err
		}
	}
	return nil
}

// parseCDI times reading the whole CDI directory with the CDI library, as containerd does after every change in it.
func (b *bench) parseCDI() (samples, error) {
	cache, err := cdiapi.NewCache(cdiapi.WithSpecDirs(b.process.path(cdiDir)), cdiapi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	var took samples
	for range 10 {
		begin := time.Now()
		if err := cache.Refresh(); err != nil {
			return nil, fmt.Errorf("read the CDI directory: %w", err)
		}
		took = append(took, time.Since(begin))
	}
	if n := len(cache.ListDevices()); n < others {
		return nil, fmt.Errorf("read the CDI directory: found %d devices, want more than %d", n, others)
	}
	return took, nil
}

// statusTime measures what it costs the plugin to write the status of claims, which it does when no call has run for
// three seconds.
func (b *bench) statusTime(ctx context.Context, claims []*drapb.Claim) error {
	return b.between(ctx, claims, func() error {
		before, err := b.process.cpu()
		if err != nil {
			return err
		}
		if err := b.settled(ctx, claims...); err != nil {
			return err
		}
		after, err := b.process.cpu()
		b.results["statuscpu"] = []float64{ms(after-before) / float64(len(claims))}
		return err
	})
}

// settled returns when the driver has written the status of the claims.
func (b *bench) settled(ctx context.Context, claims ...*drapb.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	for _, claim := range claims {
		for {
			got, err := b.plugin.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("wait for the status of claim %s: %w", claim.Name, err)
			}
			if len(got.Status.Devices) > 0 {
				break
			}
			if err := sleep(ctx, claimPause); err != nil {
				return err
			}
		}
	}
	return nil
}

// allocatedGPUs creates n claims, on each GPU in turn.
func (b *bench) allocatedGPUs(ctx context.Context, n int) ([]*drapb.Claim, error) {
	return b.claimsOf(ctx, driver, 0, n)
}

// claimsOf creates n claims of the driver, on each GPU in turn from the first.
func (b *bench) claimsOf(ctx context.Context, driver string, first, n int) ([]*drapb.Claim, error) {
	results := make([]resourceapi.DeviceRequestAllocationResult, n)
	for i := range results {
		results[i] = b.gpu(first + i)
		results[i].Driver = driver
	}
	return b.allocated(ctx, results...)
}

// writeDurably writes a file of a record's size as a record is written: temporary file, fsync, rename, fsync of the
// directory.
func writeDurably(dir string) (time.Duration, error) {
	content := make([]byte, 1024)
	begin := time.Now()
	if err := renameio.WriteFile(filepath.Join(dir, "record"), content, 0o600, renameio.WithTempDir(dir)); err != nil {
		return 0, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	err = d.Sync()
	return time.Since(begin), err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
