// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
)

// strongestCluster has one node without GPUs, for the controller. A fleet adds the others. Its scheduler logs its
// scores.
var strongestCluster = cluster{name: "strongest", profiles: map[string]string{"node-1": "none"},
	flags: []string{"--scheduler-config", "deployments/scheduler/kubeadm.yaml", "--scheduler-vmodule",
		"schedule_one=10"}}

// strongestProgram is the binary of test/strongest.
const strongestProgram = "_output/bin/strongest"

// strongest compares placements with an oracle and writes docs/project/results/strongest.md. With STRONGEST_ROUNDS it
// runs that many random clusters and only prints the result.
func strongest(ctx context.Context) error {
	build := command{label: "strongest", args: []string{"go", "build", "-o", strongestProgram, "./test/strongest"}}
	return strongestCluster.fresh(ctx, build, func(ctx context.Context, t target) error {
		install := []string{t.helm, "install", "gpu-dra-driver", "deployments/helm/gpu-dra-driver", "--namespace",
			"gpu-dra-driver", "--create-namespace",
			"--set", "controller.replicas=1", "--hide-notes"}
		if _, err := (command{args: install, env: t.env()}).output(ctx); err != nil {
			return err
		}
		if err := t.await(ctx); err != nil {
			return err
		}
		args := []string{strongestProgram, "-scheduler-log", clusterProgram + " logs --name " + strongestCluster.name +
			" kube-scheduler"}
		if rounds := os.Getenv("STRONGEST_ROUNDS"); rounds != "" {
			args = append(args, "-rounds", rounds)
		} else {
			args = append(args, "-docs", "docs/project/results/strongest.md")
		}
		return command{args: args, env: t.env()}.attach(ctx)
	})
}
