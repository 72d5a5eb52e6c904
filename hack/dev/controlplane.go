// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
)

// programsOfKubernetes builds the programs of Kubernetes and returns their folder.
func programsOfKubernetes(ctx context.Context) (string, error) {
	if err := buildClusterProgram(ctx); err != nil {
		return "", err
	}
	if err := (command{label: "programs", args: []string{clusterProgram, "build"}}).run(ctx); err != nil {
		return "", err
	}
	dir, err := tools(ctx)
	if err != nil {
		return "", err
	}
	kubectl, err := filepath.EvalSymlinks(filepath.Join(dir, "kubectl"))
	return filepath.Dir(kubectl), err
}

// onControlPlane builds a program that starts control planes, and what it needs. It returns its command line.
func onControlPlane(ctx context.Context, name, folder string) ([]string, error) {
	programs, err := programsOfKubernetes(ctx)
	if err != nil {
		return nil, err
	}
	for _, build := range []command{
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
	classes, err := command{args: []string{filepath.Join(dir, "helm"), "template", "deployments/helm/gpu-dra-driver",
		"--show-only", "templates/deviceclass.yaml"}}.output(ctx)
	if err != nil {
		return nil, err
	}
	const file = "_output/classes.yaml"
	return []string{name, "-programs", programs, "-controller", bin + "/dra-controller", "-classes", file},
		os.WriteFile(file, []byte(classes), 0o600)
}
