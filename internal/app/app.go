// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/cli"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// logFlushPeriod is the default of --log-flush-frequency. Nothing is buffered without --log-text-split-stream or
// --log-json-split-stream, and each flush wakes an idle program.
const logFlushPeriod = time.Minute

// Platform provides the GPUs.
type Platform interface {
	// Flags returns the platform's flags: for the plugin, and for the commands check and record.
	Flags() (plugin, tools *pflag.FlagSet)
	// Open returns the machine for the plugin of the node.
	Open(ctx context.Context, client kubernetes.Interface, node string) (Machine, error)
	// Attach returns the machine for check and record. If there is no NVML library, Library is nil and the error says
	// why.
	Attach() (nvml.MachineConfig, error)
}

// Machine is the hardware on which the plugin runs.
type Machine struct {
	nvml.MachineConfig
	// SharedMemory is the path of the host's /dev/shm. Empty: MPS needs none.
	SharedMemory string
	// Observers observe the steps of every call.
	Observers []steps.Observer
}

// Main runs the program and returns its exit code. more are additional commands.
func Main(name string, p Platform, more ...*cobra.Command) int {
	// The plugin uses about 4 MB and is mostly idle: collect garbage twice as often to save memory.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	cmd := Command(name, p, more...)
	tools := []string{"check", "record", "health"}
	for _, tool := range more {
		tools = append(tools, tool.Name())
	}
	if len(os.Args) > 1 && slices.Contains(tools, os.Args[1]) {
		return ExitCode(cli.RunNoErrOutput(cmd), os.Stderr)
	}
	return cli.Run(cmd)
}

// ExitCode prints the error of a command, and returns its exit code.
func ExitCode(err error, out io.Writer) int {
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

// Command returns the command line of the program.
func Command(name string, p Platform, more ...*cobra.Command) *cobra.Command {
	var o options
	logs := logsapi.NewLoggingConfiguration()
	logs.FlushFrequency.Duration.Duration = logFlushPeriod
	cmd := &cobra.Command{
		Use:   name,
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
			return run(ctx, o, p)
		},
	}
	plugin, tools := p.Flags()
	o.addFlags(cmd.Flags())
	cmd.Flags().AddFlagSet(plugin)
	logsapi.AddFlags(logs, cmd.Flags())
	cmd.AddCommand(checkCommand(p, tools), recordCommand(p, tools), healthCommand())
	cmd.AddCommand(more...)
	return cmd
}

// fromEnvironment sets flags that are not on the command line from environment variables.
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
