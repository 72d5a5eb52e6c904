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
	args, err := onControlPlane(ctx, placementProgram, "./test/placement")
	if err != nil {
		return err
	}
	if trace := os.Getenv("TRACE"); trace != "" {
		args = append(args, "-trace", trace, "-names", "default,gpuspec33,gpushare100,multigpu50", "-seeds", "1,2,3",
			"-docs", "docs/placement.md")
	}
	args = append(args, strings.Fields(os.Getenv("PLACEMENT"))...)
	return command{args: args}.attach(ctx)
}

// scaleProgram is the binary of test/scale.
const scaleProgram = bin + "/scale"

// scale measures large clusters and writes docs/scale.md. SCALE has more flags of the program.
func scale(ctx context.Context) error {
	args, err := onControlPlane(ctx, scaleProgram, "./test/scale")
	if err != nil {
		return err
	}
	args = append(append(args, "-docs", "docs/scale.md"), strings.Fields(os.Getenv("SCALE"))...)
	return command{args: args}.attach(ctx)
}

// onControlPlane builds a program that starts control planes, and what it needs. It returns its command line.
func onControlPlane(ctx context.Context, name, folder string) ([]string, error) {
	if err := buildClusterProgram(ctx); err != nil {
		return nil, err
	}
	for _, build := range []command{
		{label: "programs", args: []string{clusterProgram, "build"}},
		{label: filepath.Base(name), args: []string{"go", "build", "-o", name, folder}},
		program("dra-controller", "./cmd/dra-controller"),
	} {
		if err := build.run(ctx); err != nil {
			return nil, err
		}
	}
	dir, err := tools(ctx)
	if err != nil {
		return nil, err
	}
	kubectl, err := filepath.EvalSymlinks(filepath.Join(dir, "kubectl"))
	if err != nil {
		return nil, err
	}
	classes, err := command{args: []string{filepath.Join(dir, "helm"), "template", "deployments/helm/gpu-dra-driver",
		"--show-only", "templates/deviceclass.yaml"}}.output(ctx)
	if err != nil {
		return nil, err
	}
	const file = "_output/classes.yaml"
	return []string{name, "-programs", filepath.Dir(kubectl), "-controller", bin + "/dra-controller", "-classes", file},
		os.WriteFile(file, []byte(classes), 0o600)
}
