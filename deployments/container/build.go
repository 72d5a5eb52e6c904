// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// build is one run of go build.
type build struct {
	packages []string
	cgo      string // value of CGO_ENABLED
	ldflags  string
	tags     string
}

// sharedFlags and sharedTags are those with which hack/dev and test/cluster build too: what the driver shares with
// Kubernetes and with kubectl-gpu is compiled once. The linker leaves out debug information anyway. The tags make a
// program with cgo use the same packages net and os/user as one without.
var sharedFlags = []string{"-trimpath", "-gcflags=all=-dwarf=false"}

const sharedTags = "netgo osusergo"

// builds names every program of the images. Programs that run in other people's root file systems are static: the hooks
// run on the host, gpu-demo and nvidia-smi in containers without a C library.
//
// grpcnotrace: gRPC's traces are pages made of templates, which call methods by name, and so keep the linker from
// leaving out any method at all. Nobody reads them.
func builds() []build {
	const (
		driver    = "github.com/gpudra/gpu-dra-driver/cmd/"
		simulator = "github.com/gpudra/gpu-dra-driver/simulator/cmd/"
	)
	return []build{
		{[]string{simulator + "gpu-demo", simulator + "sim-nvidia-smi", simulator + "sim-nvidia-cuda-mps-control",
			driver + "mps-supervisor"},
			"0", "-s -w", ""},
		{[]string{driver + "gpu-remote"}, "0", "-s -w", "grpcnotrace"}, // server pods run it in an engine's image
		{[]string{"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook", driver + "cdi-hooks"},
			"1",
			`-s -w -linkmode external -extldflags "-static"`, ""},
		{[]string{driver + "dra-controller"}, "0", "-s -w", "grpcnotrace"},
		{[]string{driver + "dra-kubelet-plugin", simulator + "dra-kubelet-plugin-sim"}, "1", "-s -w", "grpcnotrace"},
	}
}

// buildPrograms writes the programs into dir. What has not changed is not built again.
func buildPrograms(ctx context.Context, p platform, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make output directory: %w", err)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for _, b := range builds() {
		for _, name := range b.packages {
			fmt.Println("build", p, filepath.Base(name))
		}
		if err := b.run(ctx, p.environment(), dir); err != nil {
			return err
		}
	}
	return nil
}

// run keeps quiet unless the build fails: cgo warns of every function that NVIDIA's headers call deprecated.
func (b build) run(ctx context.Context, environment []string, dir string) error {
	args := append([]string{"build", "-buildvcs=false", "-ldflags", b.ldflags, "-tags",
		strings.TrimSpace(sharedTags + " " + b.tags), "-o", dir + string(filepath.Separator)}, sharedFlags...)
	cmd := exec.CommandContext(ctx, "go", append(args, b.packages...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+b.cgo)
	cmd.Env = append(cmd.Env, environment...)
	if os.Getenv("CGO_CFLAGS") == "" {
		// As in the Makefile, so that both find each other's results in the build cache.
		cmd.Env = append(cmd.Env, "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(b.packages, " "), err, output.Bytes())
	}
	return nil
}
