// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	resourceapi "k8s.io/api/resource/v1"
)

const (
	firstRounds   = 10 // of first fractions, on each GPU
	shareCycles   = 100
	daemonsInTurn = 4 // GPUs on which a daemon runs; the plain ones come from the others
	shareBurst    = 32
	shareBursts   = 15
	coldBursts    = 5
	sliceCycles   = 100
	smiInRoot     = driverRoot + "/usr/bin/nvidia-smi"
)

// measureFirstShare times fractions that need a new daemon, one after the other.
func measureFirstShare(ctx context.Context, b *bench) error {
	claims, err := b.allocated(ctx, b.fractions(firstRounds*len(b.gpus))...)
	if err != nil {
		return err
	}
	prepares, err := b.eachInTurn(ctx, claims, func() error { return b.noDaemons(ctx) })
	if err != nil {
		return err
	}
	b.results["firstshare"], b.results["firstsharep50"] = []float64{prepares.at(0.99)}, []float64{prepares.p50()}
	return b.deleteClaims(ctx)
}

// measureSupervisor measures the supervisor after all daemons so far have run.
func measureSupervisor(ctx context.Context, b *bench) error {
	p, err := findProcess(ctx, b.client, supervisorLabel, supervisor)
	if err != nil {
		return err
	}
	without, err := p.memory()
	if err != nil {
		return err
	}
	return b.withDaemons(ctx, len(b.gpus), func() error {
		with, err := p.memory()
		b.results["supervisor"] = []float64{without.rss, with.rss}
		return err
	})
}

// noDaemons waits until the supervisor has cleaned up after every daemon.
func (b *bench) noDaemons(ctx context.Context) error {
	return until(ctx, "MPS daemons to end", func() (bool, error) {
		left, err := os.ReadDir(b.process.path(daemonsDir))
		return len(left) == 0, err
	})
}

// withDaemons calls do while a daemon runs on each of the first GPUs, for a fraction of it.
func (b *bench) withDaemons(ctx context.Context, gpus int, do func() error) error {
	keepers, err := b.allocated(ctx, b.fractions(gpus)...)
	if err != nil {
		return err
	}
	return errors.Join(b.withPrepared(ctx, keepers, do), b.noDaemons(ctx), b.deleteClaims(ctx))
}

// measureShares times fractions of GPUs with a daemon and whole GPUs without, alternately.
func measureShares(ctx context.Context, b *bench) error {
	return b.withDaemons(ctx, daemonsInTurn, func() error { return b.sharesBesidePlain(ctx) })
}

func (b *bench) sharesBesidePlain(ctx context.Context) error {
	var results []resourceapi.DeviceRequestAllocationResult
	for i := range shareCycles {
		results = append(results, b.fraction(i%daemonsInTurn), b.gpu(daemonsInTurn+i%(len(b.gpus)-daemonsInTurn)))
	}
	claims, err := b.allocated(ctx, results...)
	if err != nil {
		return err
	}
	dir, err := b.scratch()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var share, plain steps
	for i, claim := range claims {
		if err := b.steps(ctx, dir, claim, []*steps{&share, &plain}[i%2]); err != nil {
			return err
		}
	}
	b.results["share"], b.results["shareplain"] = []float64{share.prepare.p50()}, []float64{plain.prepare.p50()}
	return nil
}

// measureManyShares times many fractions in parallel on all GPUs, with and without running daemons.
func measureManyShares(ctx context.Context, b *bench) error {
	if err := b.withDaemons(ctx, len(b.gpus), func() error {
		t, err := b.sharesAtOnce(ctx, shareBursts, func() error { return sleep(ctx, cdiPause) })
		b.results["gets32"], b.results["shares32"] = []float64{t.gets.p50()}, []float64{t.prepares.p50()}
		b.results["shares32cpu"] = t.used.p50s(claimPrograms...)
		return err
	}); err != nil {
		return err
	}
	t, err := b.sharesAtOnce(ctx, coldBursts, func() error { return b.noDaemons(ctx) })
	b.results["firstshares32"] = []float64{t.prepares.p50()}
	b.results["firstshares32cpu"] = t.used.p50s(claimPrograms...)
	return errors.Join(err, b.deleteClaims(ctx))
}

// burstTimes are those of bursts of claims: all reads from the API server, all prepare calls, and the processor time
// during these calls.
type burstTimes struct {
	gets, prepares samples
	used           processorTimes
}

// sharesAtOnce times parallel prepare calls for fractions on all GPUs, and the same number of reads from the API
// server. It calls rest before each burst.
func (b *bench) sharesAtOnce(ctx context.Context, bursts int, rest func() error) (burstTimes, error) {
	t := burstTimes{used: processorTimes{}}
	for range bursts {
		claims, err := b.allocated(ctx, b.fractions(shareBurst)...)
		if err != nil {
			return t, err
		}
		if err := rest(); err != nil {
			return t, err
		}
		burst := func(wall *samples, call func(i int) (time.Duration, error)) error {
			begin := time.Now()
			err := atOnce(shareBurst, shareBurst, func(i int) error { _, err := call(i); return err })
			*wall = append(*wall, time.Since(begin))
			return err
		}
		err = burst(&t.gets, func(i int) (time.Duration, error) { return b.get(ctx, claims[i]) })
		if err != nil {
			return t, err
		}
		if err := t.used.during(func() error {
			return burst(&t.prepares, func(i int) (time.Duration, error) { return b.prepare(ctx, claims[i]) })
		}); err != nil {
			return t, err
		}
		if _, err := b.unprepare(ctx, claims...); err != nil {
			return t, err
		}
	}
	return t, nil
}

// fractions returns n fractions, of each GPU in turn.
func (b *bench) fractions(n int) []resourceapi.DeviceRequestAllocationResult {
	results := make([]resourceapi.DeviceRequestAllocationResult, n)
	for i := range results {
		results[i] = b.fraction(i)
	}
	return results
}

// measureTimeSlices times GPUs with a time slice. The driver sets it with nvidia-smi, here a program that does nothing.
func measureTimeSlices(ctx context.Context, b *bench) (failure error) {
	restore, err := b.replaceSMI(ctx)
	if err != nil {
		return err
	}
	defer func() { failure = errors.Join(failure, restore()) }()
	results := make([]resourceapi.DeviceRequestAllocationResult, sliceCycles)
	for i := range results {
		results[i] = b.gpu(i)
	}
	claims, err := b.configured(ctx, longTimeSlice(), results...)
	if err != nil {
		return err
	}
	dir, err := b.scratch()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var smi samples
	var slice steps
	for _, claim := range claims {
		begin := time.Now()
		if err := exec.CommandContext(ctx, b.process.path(smiInRoot)).Run(); err != nil {
			return err
		}
		smi = append(smi, time.Since(begin))
		if err := b.steps(ctx, dir, claim, &slice); err != nil {
			return err
		}
	}
	b.results["timeslice"] = []float64{slice.prepare.p50(), slice.unprepare.p50()}
	b.results["smi"] = []float64{smi.p50()}
	return b.deleteClaims(ctx)
}

// replaceSMI replaces nvidia-smi with a program that does nothing, until restore is called.
func (b *bench) replaceSMI(ctx context.Context) (restore func() error, err error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "noop")
	build := exec.CommandContext(ctx, "gcc", "-static", "-O2", "-o", program, "-x", "c", "-")
	build.Stdin = strings.NewReader("int main(void) { return 0; }")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build a program that does nothing: %w: %s", err, out)
	}
	noop, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	smi := b.process.path(smiInRoot)
	before, err := os.ReadFile(smi)
	if err != nil {
		return nil, err
	}
	return func() error { return renameio.WriteFile(smi, before, 0o755) }, renameio.WriteFile(smi, noop, 0o755)
}
