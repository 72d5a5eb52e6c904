// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gpudra/gpu-dra-driver/simulator/cuda"
	"github.com/gpudra/gpu-dra-driver/simulator/mps"
	"github.com/gpudra/gpu-dra-driver/simulator/smi"
)

// probe measures the limits of the container's simulated GPU by exceeding them.
func probe(ctx context.Context, machine smi.Machine, out io.Writer) error {
	within := cuda.Program{Reachable: machine.Reachable, Env: os.Getenv}
	memory, err := within.Allocate(ctx, 0, 1<<20)
	if err != nil {
		return err
	}
	limit := memory.Limit
	fmt.Fprintf(out, "may use %g%% of the multiprocessors\n", memory.Threads)
	memory.Free()
	if limit == 0 {
		fmt.Fprintln(out, "may use all the memory")
		return nil
	}
	fmt.Fprintf(out, "%d MiB: %s\n", limit>>20, attempt(ctx, within, limit))
	fmt.Fprintf(out, "%d MiB: %s\n", limit>>20+1, attempt(ctx, within, limit+1<<20))
	if os.Getenv(mps.PipeVariable) != "" {
		around := within
		around.Env = func(string) string { return "" }
		fmt.Fprintf(out, "1 MiB without the MPS variables: %s\n", attempt(ctx, around, 1<<20))
	}
	return nil
}

// attempt returns the result of an allocation.
func attempt(ctx context.Context, program cuda.Program, bytes uint64) string {
	memory, err := program.Allocate(ctx, 0, bytes)
	var refused *cuda.Error
	switch {
	case errors.As(err, &refused):
		return refused.Name
	case err != nil:
		return err.Error()
	}
	memory.Free()
	return "granted"
}
