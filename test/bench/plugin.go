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
	idleTime   = time.Minute
	backToBack = 200
	others     = 200
	rounds     = 2                      // without and with others, in turn
	cycles     = 75                     // of one claim in each round without others
	crowded    = 30                     // and with them
	breath     = 400 * time.Millisecond // before each of those: so long does containerd read the CDI directory after the one before
	burst      = 8
	bursts     = 25
)

// measureIdle leaves the plugin alone and looks what it uses. Nothing has been prepared yet.
func measureIdle(ctx context.Context, b *bench) error {
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
	begin, err := b.process.cpu()
	if err != nil {
		return err
	}
	var prepares samples
	for _, claim := range claims {
		took, err := b.prepare(ctx, claim)
		if err != nil {
			return err
		}
		prepares = append(prepares, took)
		if _, err := b.unprepare(ctx, claim); err != nil {
			return err
		}
	}
	end, err := b.process.cpu()
	if err != nil {
		return err
	}
	b.results["backtoback"] = []float64{prepares.p50()}
	b.results["claimcpu"] = []float64{ms(end-begin) / backToBack}
	memory, err := b.process.memory()
	if err == nil && len(b.results["rss"]) == 1 {
		b.results["rss"], b.results["anon"] = append(b.results["rss"], memory.rss), append(b.results["anon"], memory.anon)
	}
	return errors.Join(err, b.forget(ctx))
}

// steps are the times of what is measured side by side, so that one can be subtracted from the other.
type steps struct{ get, write, call, prepare, unprepare samples }

// measureOneClaim times each step of a claim by itself, alone and with many other claims prepared, in turn: what else the machine
// does then hits both alike.
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
	var alone, among steps
	var parses samples
	for range rounds {
		if err := b.quiet(ctx); err != nil {
			return err
		}
		if err := b.cycle(ctx, dir, cycles, 0, &alone); err != nil {
			return err
		}
		if err := b.crowd(ctx, many, func() error {
			parsed, err := b.parseCDI()
			parses = append(parses, parsed...)
			return errors.Join(err, b.cycle(ctx, dir, crowded, breath, &among))
		}); err != nil {
			return err
		}
	}
	b.results["prepare"] = []float64{alone.prepare.p50(), alone.prepare.at(0.99)}
	b.results["get"], b.results["write"], b.results["call"] = []float64{alone.get.p50()}, []float64{alone.write.p50()}, []float64{alone.call.p50()}
	b.results["own"] = []float64{alone.prepare.p50() - alone.get.p50() - alone.write.p50()}
	b.results["unprepare"] = []float64{alone.unprepare.p50()}
	b.results["prepare200"] = []float64{among.prepare.p50()}
	b.results["parse200"] = []float64{parses.p50()}
	return b.forget(ctx)
}

// cycle takes n new claims through their steps, with a pause before each of them.
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

// steps takes a claim through its steps. There is no pause between them: a processor that has to be woken takes as long as a step.
func (b *bench) steps(ctx context.Context, dir string, claim *drapb.Claim, s *steps) error {
	for _, step := range []struct {
		do   func() (time.Duration, error)
		took *samples
	}{
		{func() (time.Duration, error) { return b.get(ctx, claim) }, &samples{}}, // after what came before, which is not timed
		{func() (time.Duration, error) { return b.get(ctx, claim) }, &s.get},
		{func() (time.Duration, error) { return writeDurably(dir) }, &s.write},
		{func() (time.Duration, error) { return b.prepare(ctx) }, &s.call},
		{func() (time.Duration, error) { return b.prepare(ctx, claim) }, &s.prepare},
		{func() (time.Duration, error) { return 0, b.settled(ctx, claim) }, &samples{}},
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

// crowd prepares the claims, lets do run, and releases them.
func (b *bench) crowd(ctx context.Context, claims []*drapb.Claim, do func() error) error {
	for _, claim := range claims {
		if _, err := b.prepare(ctx, claim); err != nil {
			return err
		}
	}
	err := b.quiet(ctx)
	if err == nil {
		err = do()
	}
	for _, claim := range claims {
		_, failed := b.unprepare(ctx, claim)
		err = errors.Join(err, failed)
	}
	return err
}

// quiet waits until the machine does next to nothing for half a second: containerd reads all CDI files again for each that came or
// went, and with hundreds of them that goes on for seconds after the last call. A machine that has other things to do is not waited
// for for long.
func (b *bench) quiet(ctx context.Context) error {
	const look, little, patience = 500 * time.Millisecond, 0.2, 12 * time.Second // little: of one processor
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
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

// parseCDI reads the CDI directory as containerd does at every change of a file in it: with this library, all files.
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

// measureManyAtOnce times eight claims on eight GPUs: a call for each at once, and all in one call.
func measureManyAtOnce(ctx context.Context, b *bench) error {
	var calls, call samples
	for range bursts {
		for _, kind := range []struct {
			prepare func(claims []*drapb.Claim) error
			took    *samples
		}{
			{func(claims []*drapb.Claim) error {
				return atOnce(burst, burst, func(i int) error { _, err := b.prepare(ctx, claims[i]); return err })
			}, &calls},
			{func(claims []*drapb.Claim) error { _, err := b.prepare(ctx, claims...); return err }, &call},
		} {
			claims, err := b.allocatedGPUs(ctx, burst)
			if err != nil {
				return err
			}
			begin := time.Now()
			err = kind.prepare(claims)
			*kind.took = append(*kind.took, time.Since(begin))
			if err != nil {
				return err
			}
			if err := b.settled(ctx, claims...); err != nil {
				return err
			}
			if _, err := b.unprepare(ctx, claims...); err != nil {
				return err
			}
		}
	}
	b.results["calls8"], b.results["claims8"] = []float64{calls.p50()}, []float64{call.p50()}
	return b.forget(ctx)
}

// settled returns when the driver has written the status of the claims, as it does after it has answered: what is timed next has
// the machine for itself.
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
		}
	}
	return nil
}

// allocatedGPUs makes claims on the GPUs in turn.
func (b *bench) allocatedGPUs(ctx context.Context, n int) ([]*drapb.Claim, error) {
	results := make([]resourceapi.DeviceRequestAllocationResult, n)
	for i := range results {
		results[i] = b.gpu(i)
	}
	return b.allocated(ctx, results...)
}

// writeDurably writes as many bytes as a record has, in the way of a record: temporary file, fsync, rename, fsync of the directory.
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
