// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"

	"golang.org/x/sync/errgroup"
)

// strongestCluster has one node, without GPUs: the controller runs there. The others are a fleet. Its scheduler says how it scores.
var strongestCluster = cluster{name: "strongest", profiles: map[string]string{"node-1": "none"},
	flags: []string{"--scheduler-config", "deployments/scheduler/gpu-first.yaml", "--scheduler-vmodule", "schedule_one=10"}}

// strongestProgram is the program that asks and compares.
const strongestProgram = "_output/bin/strongest"

// strongest always stops the cluster. STRONGEST_ROUNDS makes another number of random clusters, and writes nothing.
func strongest(ctx context.Context) (failure error) {
	if err := buildClusterProgram(ctx); err != nil {
		return err
	}
	if err := check(ctx); err != nil {
		return err
	}
	if err := strongestCluster.down(ctx); err != nil { // what an interrupted run left
		return err
	}
	defer func() {
		if err := strongestCluster.down(ctx); err != nil && failure == nil {
			failure = err
		}
	}()
	work, workCtx := errgroup.WithContext(ctx)
	work.Go(func() error { return strongestCluster.up(workCtx) })
	work.Go(func() error {
		if err := buildImages(workCtx); err != nil {
			return err
		}
		return command{label: "strongest", args: []string{"go", "build", "-o", strongestProgram, "./test/strongest"}}.run(workCtx)
	})
	if err := work.Wait(); err != nil {
		return err
	}
	if err := strongestCluster.load(ctx, archive); err != nil {
		return err
	}
	t, err := strongestCluster.target(ctx)
	if err != nil {
		return err
	}
	install := []string{t.helm, "install", "gpu-dra-driver", "deployments/helm/gpu-dra-driver", "--namespace", "gpu-dra-driver", "--create-namespace",
		"--set", "controller.replicas=1", "--wait=legacy", "--timeout", "2m", "--hide-notes"}
	if _, err := (command{args: install, env: t.env()}).output(ctx); err != nil {
		return err
	}
	args := []string{strongestProgram, "-scheduler-log", clusterProgram + " logs --name " + strongestCluster.name + " kube-scheduler"}
	if rounds := os.Getenv("STRONGEST_ROUNDS"); rounds != "" {
		args = append(args, "-rounds", rounds)
	} else {
		args = append(args, "-docs", "docs/strongest.md")
	}
	return command{args: args, env: t.env()}.attach(ctx)
}
