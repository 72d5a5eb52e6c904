// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"

	"golang.org/x/sync/errgroup"
)

// benchCluster has the node of the aims: 8 GPUs.
var benchCluster = cluster{name: "bench", profiles: map[string]string{"node-1": "dgx-h100"}}

// benchProgram is the program that measures.
const benchProgram = "_output/bin/bench"

// bench always stops the cluster. What it measures it writes into docs/benchmarks.md, or only prints when BENCH_ROWS selects some.
func bench(ctx context.Context) (failure error) {
	if err := buildClusterProgram(ctx); err != nil {
		return err
	}
	if err := check(ctx); err != nil {
		return err
	}
	if err := benchCluster.down(ctx); err != nil { // what an interrupted run left
		return err
	}
	defer func() {
		if err := benchCluster.down(ctx); err != nil && failure == nil {
			failure = err
		}
	}()
	work, workCtx := errgroup.WithContext(ctx)
	work.Go(func() error { return benchCluster.up(workCtx) })
	work.Go(func() error {
		if err := buildImages(workCtx); err != nil {
			return err
		}
		return command{label: "bench", args: []string{"go", "build", "-o", benchProgram, "./test/bench"}}.run(workCtx)
	})
	if err := work.Wait(); err != nil {
		return err
	}
	if err := benchCluster.load(ctx, archive); err != nil {
		return err
	}
	t, err := benchCluster.target(ctx)
	if err != nil {
		return err
	}
	if err := t.install(ctx); err != nil {
		return err
	}
	args := []string{benchProgram, "-docs", "docs/benchmarks.md"}
	if rows := os.Getenv("BENCH_ROWS"); rows != "" {
		args = []string{benchProgram, "-rows", rows}
	}
	return command{args: args, env: t.env()}.attach(ctx)
}
