// SPDX-License-Identifier: Apache-2.0

// dra-kubelet-plugin serves the GPUs of one node to Kubernetes.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/cli"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/simctl"
)

func main() {
	// The plugin holds some 4 MB and does nothing most of the time: it is better to collect twice as often than to hold as much again.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	cmd := command()
	if tools := []string{"check", "record"}; len(os.Args) > 1 && slices.Contains(tools, os.Args[1]) {
		os.Exit(exitCode(cli.RunNoErrOutput(cmd), os.Stderr))
	}
	os.Exit(cli.Run(cmd))
}

// exitCode is that of a command for people, which prints its errors as they are.
func exitCode(err error, out io.Writer) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUnhealthy):
		return 1
	}
	fmt.Fprintf(out, "Error: %v\n", err)
	if errors.Is(err, errUsage) {
		return 2
	}
	return 1
}

func command() *cobra.Command {
	var o options
	logs := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{
		Use:   "dra-kubelet-plugin",
		Short: "Serves the GPUs of one node to Kubernetes, by Dynamic Resource Allocation.",
		Long: "Serves the GPUs of one node to Kubernetes, by Dynamic Resource Allocation.\n\n" +
			"Every flag can be given as an environment variable too: --node-name as NODE_NAME.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			if err := logsapi.ValidateAndApply(logs, nil); err != nil {
				return err
			}
			return o.complete()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return run(ctx, o)
		},
	}
	o.addFlags(cmd.Flags())
	logsapi.AddFlags(logs, cmd.Flags())
	cmd.AddCommand(simctl.Command(), checkCommand(), recordCommand())
	return cmd
}

// fromEnvironment sets every flag that is not on the command line from its variable, if there is one.
func fromEnvironment(flags *pflag.FlagSet) error {
	var err error
	flags.VisitAll(func(f *pflag.Flag) {
		name := strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := os.LookupEnv(name)
		if !ok || f.Changed || err != nil {
			return
		}
		if e := flags.Set(f.Name, value); e != nil {
			err = fmt.Errorf("environment variable %s: %w", name, e)
		}
	})
	return err
}
