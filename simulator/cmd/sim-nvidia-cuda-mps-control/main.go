// SPDX-License-Identifier: Apache-2.0

// sim-nvidia-cuda-mps-control is nvidia-cuda-mps-control for simulated GPUs. It is static, so that it runs in any
// container.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpudra/gpu-dra-driver/simulator/mps"
)

func main() {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := mps.Program{Path: self, Args: os.Args[1:], Env: os.Getenv, In: os.Stdin, Out: os.Stdout,
		Err: os.Stderr}.Run(ctx)
	stop()
	os.Exit(code)
}
