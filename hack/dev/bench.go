// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
)

// benchCluster has the node that the targets are for: 8 GPUs.
var benchCluster = cluster{name: "bench", profiles: map[string]string{"node-1": "dgx-h100"}}

// benchProgram is the binary of test/bench.
const benchProgram = "_output/bin/bench"

const benchDocs = "docs/project/results/benchmarks.md"

// bench measures the driver and writes docs/project/results/benchmarks.md; the rows that BENCH_ROWS selects are only
// printed.
func bench(ctx context.Context) error {
	if rows := os.Getenv("BENCH_ROWS"); rows != "" {
		return runBench(ctx, "-rows", rows)
	}
	return runBench(ctx, "-docs", benchDocs)
}

// timeline measures the parts of a pod's start, and writes a table and a picture.
func timeline(ctx context.Context) error {
	return runBench(ctx, "-docs", benchDocs, "-timeline", "docs/project/results/timeline.svg")
}

func runBench(ctx context.Context, args ...string) error {
	build := command{label: "bench", args: []string{"go", "build", "-o", benchProgram, "./test/bench"}}
	// The floor runs in the file system of the plugin's container, which has no libraries.
	floor := command{label: "floor", args: []string{"go", "build", "-ldflags", "-s -w", "-o", "_output/bin/floor",
		"./test/floor"}, env: []string{"CGO_ENABLED=0"}}
	plugin, err := buildPlugin()
	if err != nil {
		return err
	}
	for _, program := range []command{floor, plugin} {
		if err := program.run(ctx); err != nil {
			return err
		}
	}
	return benchCluster.fresh(ctx, build, func(ctx context.Context, t target) error {
		// The defaults, and not those of the demos.
		if err := t.install(ctx, "--set", "idle.after=30m,controller.admission.timeoutSeconds=1"); err != nil {
			return err
		}
		if err := t.grantPlugin(ctx); err != nil {
			return err
		}
		return command{args: append([]string{benchProgram}, args...), env: t.env()}.attach(ctx)
	})
}

// grantPlugin gives the simulated plugin the rights that the chart gives it on real GPUs. Without them it cannot see to
// which container a process belongs, and looks at more processes when it releases a claim.
func (t target) grantPlugin(ctx context.Context) error {
	dir, err := tools(ctx)
	if err != nil {
		return err
	}
	const privileged = `[{"op": "replace", "path": "/spec/template/spec/containers/0/securityContext",
		"value": {"privileged": true}}]`
	args := []string{filepath.Join(dir, "kubectl"), "patch", "--type=json", "--patch=" + privileged,
		"--namespace=gpu-dra-driver", "daemonset/gpu-dra-driver-kubelet-plugin"}
	if _, err := (command{args: args, env: t.env()}).output(ctx); err != nil {
		return err
	}
	return t.await(ctx)
}
