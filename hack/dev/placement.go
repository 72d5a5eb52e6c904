// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"strings"
)

// placementProgram is the binary of test/placement.
const placementProgram = bin + "/placement"

// placement measures how many GPUs kube-scheduler can use with and without the controller's scores. TRACE is the folder
// of a trace: its results go to docs/project/results/placement.md. Without it the trace is generated, and results are
// only printed. PLACEMENT has more flags of the program.
func placement(ctx context.Context) error {
	args, err := onControlPlane(ctx, placementProgram, "./test/placement")
	if err != nil {
		return err
	}
	if trace := os.Getenv("TRACE"); trace != "" {
		args = append(args, "-trace", trace, "-names", "default,gpuspec33,gpushare100,multigpu50", "-seeds", "1,2,3",
			"-docs", "docs/project/results/placement.md")
	}
	args = append(args, strings.Fields(os.Getenv("PLACEMENT"))...)
	return command{args: args}.attach(ctx)
}
