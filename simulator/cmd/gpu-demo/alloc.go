// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/simulator/cuda"
	"github.com/gpudra/gpu-dra-driver/simulator/mps"
	"github.com/gpudra/gpu-dra-driver/simulator/smi"
)

// allocOptions are the options of alloc.
type allocOptions struct {
	bytes  uint64
	device int
	stay   bool
	unset  []string // environment variables to hide from the program
}

func parseAlloc(args []string) (allocOptions, error) {
	var o allocOptions
	var err error
	size := ""
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		switch {
		case arg == "--stay":
			o.stay = true
		case arg == "--unset-mps":
			o.unset = append(o.unset, mps.PipeVariable)
		case arg == "--unset-limits":
			o.unset = append(o.unset, mps.ThreadsVariable, mps.MemoryVariable)
		case name == "--device":
			if o.device, err = strconv.Atoi(value); err != nil {
				return o, fmt.Errorf("device %q: want a number", value)
			}
		case strings.HasPrefix(arg, "-") || size != "":
			return o, errUsage
		default:
			size = arg
		}
	}
	o.bytes, err = parseSize(size)
	return o, err
}

// parseSize parses a number of bytes such as 5Gi, 512Mi or 1024.
func parseSize(s string) (uint64, error) {
	shift := 0
	digits := s
	for i, unit := range []string{"Ki", "Mi", "Gi", "Ti"} {
		if d, ok := strings.CutSuffix(s, unit); ok {
			digits, shift = d, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > math.MaxUint64>>shift {
		return 0, fmt.Errorf("size %q: want a number of bytes such as 5Gi or 512Mi", s)
	}
	return n << shift, nil
}

// alloc allocates memory as a CUDA program would, and prints what it got and its limits.
func alloc(ctx context.Context, args []string, machine smi.Machine, out io.Writer) error {
	o, err := parseAlloc(args)
	if err != nil {
		return err
	}
	program := cuda.Program{Reachable: machine.Reachable, Env: func(name string) string {
		if slices.Contains(o.unset, name) {
			return ""
		}
		return os.Getenv(name)
	}}
	memory, err := program.Allocate(ctx, o.device, o.bytes)
	if err != nil {
		return err
	}
	defer memory.Free()
	limit := "all"
	if memory.Limit > 0 {
		limit = fmt.Sprintf("%dMiB", memory.Limit>>20)
	}
	if _, err := fmt.Fprintf(out, "granted %dMiB of %s, limit %s, threads %g%%\n", memory.Bytes>>20, memory.UUID, limit,
		memory.Threads); err != nil || !o.stay {
		return err
	}
	return memory.Hold(ctx)
}
