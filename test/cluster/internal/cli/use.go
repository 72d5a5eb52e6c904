// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/preflight"
)

func statusCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Print what the cluster consists of; fails unless all of it runs",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			err = cluster.Status(place, os.Stdout)
			if names := cluster.Names(o.state); errors.Is(err, cluster.ErrNotUp) && len(names) > 0 {
				err = fmt.Errorf("%w (clusters here: %v)", err, names)
			}
			return err
		},
	}
}

func kubeconfigCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of a kubeconfig that works in a plain shell",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			path, err := cluster.FindKubeconfig(place)
			if err != nil {
				return err
			}
			fmt.Println(path)
			return nil
		},
	}
}

func execCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "exec NODE -- COMMAND [ARGUMENT…]",
		Short: "Run a command on a node (or on control-plane) and pass its exit status on",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			if err := preflight.CheckRoot(); err != nil {
				return err
			}
			// The terminal sends Ctrl-C also to the command, which decides. Main catches the signal here, so this
			// process waits.
			status, err := cluster.Exec(place, args[0], args[1:], machine.Streams{In: os.Stdin, Out: os.Stdout,
				Err: os.Stderr})
			if err != nil {
				return err
			}
			if status != 0 {
				return exitStatus(status)
			}
			return nil
		},
	}
}

func loadCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "load IMAGE.tar…",
		Short: "Make every node know the images of an OCI archive",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			if err := preflight.CheckRoot(); err != nil {
				return err
			}
			for _, archive := range args {
				if err := cluster.Load(place, archive); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func logsCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "logs [NODE/]COMPONENT",
		Short: "Print the log of a component, e.g. kube-scheduler or node-1/kubelet",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			return cluster.Logs(place, args[0], os.Stdout)
		},
	}
}

// machineCommand returns the hidden command that is PID 1 of a machine.
func machineCommand() *cobra.Command {
	return &cobra.Command{
		Use:    machine.Subcommand + " FOLDER",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return machine.Init(args[0]) },
	}
}

// probeCommand returns the hidden command that tries the kernel's features in its own namespaces.
func probeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    preflight.Subcommand,
		Hidden: true,
		Args:   cobra.NoArgs,
		Run: func(*cobra.Command, []string) {
			if err := preflight.Probe(); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		},
	}
}
