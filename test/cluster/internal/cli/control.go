// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/preflight"
)

func crashCommand(o *options) *cobra.Command {
	return o.controlCommand("crash NODE", "End a node at once, as a power cut does", cluster.Crash)
}

func startCommand(o *options) *cobra.Command {
	return o.controlCommand("start NODE|[NODE/]COMPONENT",
		"Boot a node that crashed, or run a program that was stopped", cluster.Start)
}

func stopCommand(o *options) *cobra.Command {
	return o.controlCommand("stop [NODE/]COMPONENT", "End a program, e.g. apiserver or node-1/kubelet, until start",
		cluster.Stop)
}

func restartCommand(o *options) *cobra.Command {
	return o.controlCommand("restart [NODE/]COMPONENT", "End a program and run it again", cluster.Restart)
}

func pauseCommand(o *options) *cobra.Command {
	return o.controlCommand("pause NODE", "Stop every process of a node (or of control-plane) where it stands",
		func(_ context.Context, p cluster.Place, name string) error { return cluster.Pause(p, name) })
}

func resumeCommand(o *options) *cobra.Command {
	return o.controlCommand("resume NODE", "Let the processes of a paused node go on",
		func(_ context.Context, p cluster.Place, name string) error { return cluster.Resume(p, name) })
}

// controlCommand returns a command that acts on one machine or program.
func (o *options) controlCommand(use, short string, do func(ctx context.Context, p cluster.Place,
	name string) error) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			if err := preflight.CheckRoot(); err != nil {
				return err
			}
			return do(c.Context(), place, args[0])
		},
	}
}
