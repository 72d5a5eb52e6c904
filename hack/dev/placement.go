// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

// placementProgram is the binary of test/placement.
const placementProgram = bin + "/placement"

// placement measures how many GPUs kube-scheduler can use with and without the controller's scores. TRACE is the folder
// of a trace: its results go to docs/placement.md. Without it the trace is generated, and results are only printed.
// PLACEMENT has more flags of the program.
func placement(ctx context.Context) error {
	if err := buildClusterProgram(ctx); err != nil {
		return err
	}
	for _, build := range []command{
		{label: "programs", args: []string{clusterProgram, "build"}},
		{label: "placement", args: []string{"go", "build", "-o", placementProgram, "./test/placement"}},
		program("dra-controller", "./cmd/dra-controller"),
	} {
		if err := build.run(ctx); err != nil {
			return err
		}
	}
	dir, err := tools(ctx)
	if err != nil {
		return err
	}
	kubectl, err := filepath.EvalSymlinks(filepath.Join(dir, "kubectl"))
	if err != nil {
		return err
	}
	classes, err := command{args: []string{filepath.Join(dir, "helm"), "template", "deployments/helm/gpu-dra-driver",
		"--show-only", "templates/deviceclass.yaml"}}.output(ctx)
	if err != nil {
		return err
	}
	const file = "_output/classes.yaml"
	if err := os.WriteFile(file, []byte(classes), 0o600); err != nil {
		return err
	}
	args := []string{placementProgram, "-programs", filepath.Dir(kubectl), "-controller", bin + "/dra-controller",
		"-classes", file}
	if trace := os.Getenv("TRACE"); trace != "" {
		args = append(args, "-trace", trace, "-names", "default,gpuspec33,gpushare100,multigpu50", "-seeds", "1,2,3",
			"-docs", "docs/placement.md")
	}
	args = append(args, strings.Fields(os.Getenv("PLACEMENT"))...)
	return command{args: args}.attach(ctx)
}
