// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line: it parses arguments, calls package cluster, and prints the results.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/components"
)

// exitStatus is the exit status of a command in a machine. Main returns it without printing a message.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Main runs the command line and returns the exit status.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var status exitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	default:
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
}

// options are the flags of all commands.
type options struct {
	state      string
	name       string
	components string
}

func (o *options) place() (cluster.Place, error) {
	if err := cluster.CheckName(o.name); err != nil {
		return cluster.Place{}, err
	}
	return cluster.Place{State: o.state, Name: o.name}, nil
}

func (o *options) cache() (components.Cache, error) {
	return components.Open(o.components, os.Stderr)
}

func newRoot() *cobra.Command {
	var o options
	root := &cobra.Command{
		Use:           "cluster",
		Short:         "Run a real Kubernetes of several nodes on this machine, without Docker",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	flags := root.PersistentFlags()
	flags.StringVar(&o.name, "name", "dev", "name of the cluster")
	flags.StringVar(&o.state, "state", cluster.DefaultState, "folder below which each cluster keeps everything it has")
	flags.StringVar(&o.components, "components", "", "folder with the pinned components (found by itself inside the "+
		"repository)")
	root.AddCommand(
		upCommand(&o), downCommand(&o), statusCommand(&o), kubeconfigCommand(&o),
		execCommand(&o), loadCommand(&o), logsCommand(&o),
		crashCommand(&o), startCommand(&o), stopCommand(&o), restartCommand(&o), pauseCommand(&o), resumeCommand(&o),
		fleetCommand(&o), buildCommand(&o), toolsCommand(&o), checkCommand(&o),
		machineCommand(), probeCommand(),
	)
	return root
}
