// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/apirequests"
)

const (
	churnClaims  = 10_000
	churnBatch   = 200 // claims that exist at once
	churnSteady  = churnClaims / 2
	churnTraced  = 100 // claims whose fsyncs are counted
	tracerAttach = 2 * time.Second
)

// measureChurn prepares and releases 10,000 claims for whole GPUs, and measures what each of them leaves and costs.
func measureChurn(ctx context.Context, b *bench) error {
	files, err := b.process.openFiles()
	if err != nil {
		return err
	}
	calls, err := b.claimCalls(ctx)
	if err != nil {
		return err
	}
	written, err := b.process.written()
	if err != nil {
		return err
	}
	var rss []float64 // KiB, after each batch of the second half
	for done := 0; done < churnClaims; done += churnBatch {
		if err := b.churn(ctx, churnBatch); err != nil {
			return err
		}
		memory, err := b.process.memory()
		if err != nil {
			return err
		}
		if done >= churnSteady {
			rss = append(rss, memory.rss*1024)
		}
	}
	filesAfter, err := b.process.openFiles()
	if err != nil {
		return err
	}
	callsAfter, err := b.claimCalls(ctx)
	if err != nil {
		return err
	}
	writtenAfter, err := b.process.written()
	if err != nil {
		return err
	}
	b.results["churn"] = []float64{slope(rss) / churnBatch}
	b.results["churnfiles"] = []float64{files, filesAfter}
	b.results["churncalls"] = []float64{(callsAfter - calls) / churnClaims}
	b.results["churnbytes"] = []float64{(writtenAfter - written) / 1024 / churnClaims}
	syncs, err := b.syncs(ctx)
	if err == nil {
		b.results["churnsyncs"] = []float64{syncs / churnTraced}
	}
	if errors.Is(err, exec.ErrNotFound) { // without strace the row is left out
		err = nil
	}
	return err
}

// churn prepares and releases n new claims, on each GPU one after the other, and deletes them.
func (b *bench) churn(ctx context.Context, n int) error {
	claims, err := b.allocatedGPUs(ctx, n)
	if err != nil {
		return err
	}
	err = atOnce(len(b.gpus), len(b.gpus), func(gpu int) error {
		for i := gpu; i < n; i += len(b.gpus) { // allocatedGPUs takes the GPUs in turn
			if _, err := b.prepare(ctx, claims[i]); err != nil {
				return err
			}
			if _, err := b.unprepare(ctx, claims[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, b.deleteClaims(ctx))
}

// slope returns by how much the values grow from one to the next: the line with the least squares of distances.
func slope(values []float64) float64 {
	n := float64(len(values))
	var x, y, xx, xy float64
	for i, v := range values {
		at := float64(i)
		x, y, xx, xy = x+at, y+v, xx+at*at, xy+at*v
	}
	return (n*xy - x*y) / (n*xx - x*x)
}

// openFiles counts the descriptors of the process.
func (p process) openFiles() (float64, error) {
	entries, err := os.ReadDir(proc(p.pid, "fd"))
	return float64(len(entries)), err
}

// written returns how many bytes the process has caused to be written to disks so far.
func (p process) written() (float64, error) {
	data, err := os.ReadFile(proc(p.pid, "io"))
	if err != nil {
		return 0, err
	}
	_, text, found := strings.Cut(string(data), "\nwrite_bytes: ")
	if !found {
		return 0, errors.New("no write_bytes in the io file of the plugin")
	}
	line, _, _ := strings.Cut(text, "\n")
	return strconv.ParseFloat(line, 64)
}

// claimCalls returns how many calls about single claims the API server has answered that the bench does not make
// itself: it only creates claims, updates their status, and deletes them together.
func (b *bench) claimCalls(ctx context.Context) (float64, error) {
	counts, err := apirequests.Read(ctx, b.client.Discovery().RESTClient())
	return float64(counts.Of("resourceclaims", "GET", "APPLY", "PATCH")), err
}

// syncCall matches a system call that waits for a disk, in the output of strace.
var syncCall = regexp.MustCompile(`(?m)\b(fsync|fdatasync|syncfs|sync)\(`)

// syncs counts the fsyncs of the plugin while claims are prepared and released. Error: exec.ErrNotFound without strace.
func (b *bench) syncs(ctx context.Context) (float64, error) {
	dir, err := b.scratch()
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	output := filepath.Join(dir, "strace")
	tracer := exec.CommandContext(ctx, "strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,syncfs,sync",
		"-o", output, "-p", strconv.Itoa(b.process.pid))
	tracer.Stderr = os.Stderr
	if err := tracer.Start(); err != nil {
		return 0, err
	}
	err = sleep(ctx, tracerAttach)
	if err == nil {
		err = b.churn(ctx, churnTraced)
	}
	stopped := tracer.Process.Signal(syscall.SIGINT)
	_ = tracer.Wait() // its status is that of the signal
	if err := errors.Join(err, stopped); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(output)
	return float64(len(syncCall.FindAll(text, -1))), err
}
