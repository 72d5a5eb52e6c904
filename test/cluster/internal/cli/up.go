// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/components"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/controlplane"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/preflight"
)

// stopAt is the environment variable with the stage at which `up` stops and waits to be killed. For tests.
const stopAt = "GPU_DRA_CLUSTER_STOP_AT"

const kubernetesUsage = "VERSION: one of those that test/cluster/components pins, as v1.34 or v1.34.4; without: the " +
	"newest"

func upCommand(o *options) *cobra.Command {
	var (
		nodes                          int
		kubernetes                     string
		profiles, gates, runtimeConfig []string
		audit                          []string
		schedulerConfig                string
		schedulerVModule               string
		keepFailed                     bool
	)
	c := &cobra.Command{
		Use:   "up",
		Short: "Start the cluster; returns when every node is ready",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			config, err := cluster.NewConfig(nodes, profiles, gates, runtimeConfig)
			if err != nil {
				return err
			}
			config.Kubernetes, config.Audit, config.SchedulerVModule = kubernetes, audit, schedulerVModule
			if config.SchedulerConfig, err = readSchedulerConfig(schedulerConfig); err != nil {
				return err
			}
			programs, err := o.ready(c.Context(), config.Kubernetes)
			if err != nil {
				return err
			}
			s := cluster.Starter{
				Place: place, Config: config, Programs: programs,
				Out: os.Stderr, KeepFailed: keepFailed, Reached: stopper(os.Getenv(stopAt)),
			}
			if err := s.Up(c.Context()); err != nil {
				return err
			}
			fmt.Printf("export KUBECONFIG=%s\n", place.Kubeconfig())
			return nil
		},
	}
	flags := c.Flags()
	flags.IntVar(&nodes, "nodes", 3, "number of nodes; they are called node-1, node-2, …")
	flags.StringVar(&kubernetes, "kubernetes", "", kubernetesUsage)
	flags.StringSliceVar(&profiles, "profile", nil, "NODE=PROFILE: simulated GPUs of a node (the label "+
		cluster.ProfileLabel+")")
	flags.StringSliceVar(&gates, "feature-gates", nil, "NAME=true|false for all components")
	flags.StringSliceVar(&runtimeConfig, "runtime-config", nil, "GROUP/VERSION=true|false for the API server")
	flags.StringSliceVar(&audit, "audit", nil, "USER: log this user's requests to the API server, one JSON object a "+
		"line; logs audit prints them")
	flags.StringVar(&schedulerConfig, "scheduler-config", "", "FILE: a KubeSchedulerConfiguration for the scheduler; "+
		"kubeconfig and leader election are this cluster's")
	flags.StringVar(&schedulerVModule, "scheduler-vmodule", "", "what the scheduler logs more of, as klog has it; "+
		"schedule_one=10: each plugin's score for each node")
	flags.BoolVar(&keepFailed, "keep-failed", false, "leave a start that failed as it is, to look at its logs")
	return c
}

// readSchedulerConfig returns the content of the file; empty if no file is given.
func readSchedulerConfig(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("scheduler-config: %w", err)
	}
	config, err := controlplane.CompleteSchedulerConfig(text)
	if err != nil {
		return "", fmt.Errorf("scheduler-config: %s: %w", file, err)
	}
	return config, nil
}

// ready checks the machine, then builds and installs what is missing.
func (o *options) ready(ctx context.Context, kubernetes string) (components.Dirs, error) {
	if err := preflight.Check(ctx, o.state); err != nil {
		return nil, err
	}
	cache, err := o.cache()
	if err != nil {
		return nil, err
	}
	if err := components.Ensure(ctx, os.Stderr, components.Runtime); err != nil {
		return nil, err
	}
	return cache.BuildRunning(ctx, kubernetes)
}

func stopper(at string) func(string) {
	if at == "" {
		return nil
	}
	return func(stage string) {
		if stage == at {
			fmt.Fprintln(os.Stderr, "stopped at", stage)
			select {}
		}
	}
}

func downCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End the cluster and remove everything it made; may be repeated",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			if err := preflight.CheckRoot(); err != nil {
				return err
			}
			return cluster.Down(c.Context(), place)
		},
	}
}

func checkCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Say whether this machine can run a cluster; changes nothing",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return preflight.Check(c.Context(), o.state)
		},
	}
}

func buildCommand(o *options) *cobra.Command {
	var kubernetes string
	c := &cobra.Command{
		Use:   "build",
		Short: "Build every program that is not in the cache, and start nothing",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cache, err := o.cache()
			if err != nil {
				return err
			}
			if _, err := cache.BuildRunning(c.Context(), kubernetes); err != nil {
				return err
			}
			_, err = cache.Tools(c.Context())
			return err
		},
	}
	c.Flags().StringVar(&kubernetes, "kubernetes", "", kubernetesUsage)
	return c
}

func toolsCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "tools",
		Short: "Print the folder with kubectl and helm, for PATH",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cache, err := o.cache()
			if err != nil {
				return err
			}
			dir, err := cache.Tools(c.Context())
			if err != nil {
				return err
			}
			fmt.Println(dir)
			return nil
		},
	}
}
