// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// compare measures this driver and NVIDIA's in turn and writes docs/project/results/comparison.md. PEER is NVIDIA's GPU
// kubelet plugin, which is not built here.
func compare(ctx context.Context) error {
	peer := os.Getenv("PEER")
	if peer == "" {
		return errors.New("PEER is missing: name the program gpu-kubelet-plugin of NVIDIA's DRA driver, which you " +
			"have built from its repository, as in make compare PEER=/path/gpu-kubelet-plugin")
	}
	programs, err := programsOfKubernetes(ctx)
	if err != nil {
		return err
	}
	for _, build := range []command{
		{label: "bench", args: []string{"go", "build", "-o", benchProgram, "./test/bench"}},
		// As the image has it.
		{label: "plugin", args: []string{"go", "build", "-trimpath", "-ldflags", "-s -w", "-tags", "grpcnotrace", "-o",
			bin + "/", "./cmd/dra-kubelet-plugin"}},
		{label: "library", args: []string{"go", "run", "./simulator/libnvml/build", filepath.Join(bin,
			"libnvidia-ml.so.1")}},
		{label: "hooks", args: []string{"go", "build", "-o", bin + "/", "./cmd/cdi-hooks",
			"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook"}},
		program("sim-nvidia-smi", "./simulator/cmd/sim-nvidia-smi"),
	} {
		if err := build.run(ctx); err != nil {
			return err
		}
	}
	return command{args: []string{benchProgram, "-peer", peer, "-programs", programs, "-docs",
		"docs/project/results/comparison.md"}}.attach(ctx)
}
