// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cluster"
)

// fleetCommand execs test/fleet/cmd of the driver's module, on which this module does not depend.
func fleetCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "fleet",
		Short: "Play further nodes, without kubelets, until interrupted; they have simulated GPUs",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			kubeconfig, err := cluster.FindKubeconfig(place)
			if err != nil {
				return err
			}
			program, err := o.buildFleet(c.Context())
			if err != nil {
				return err
			}
			return unix.Exec(program, append([]string{program, "--kubeconfig=" + kubeconfig},
				givenFlags(c.LocalNonPersistentFlags())...), os.Environ())
		},
	}
	// Flags that are not given keep the defaults of that program.
	flags := c.Flags()
	flags.Int("nodes", 0, "number of nodes; they are called fleet-0001, fleet-0002, …")
	flags.StringArray("profile", nil, "PROFILE or PROFILE=WEIGHT: what nodes have, and in which proportion; a name "+
		"with a / is a file")
	flags.String("cpu", "", "what each node has for pods")
	flags.String("memory", "", "what each node has for pods")
	return c
}

// givenFlags returns the flags that were set, as arguments.
func givenFlags(flags *pflag.FlagSet) []string {
	var args []string
	flags.VisitAll(func(f *pflag.Flag) {
		list, several := f.Value.(pflag.SliceValue)
		switch {
		case !f.Changed:
		case several:
			for _, item := range list.GetSlice() {
				args = append(args, "--"+f.Name+"="+item)
			}
		default:
			args = append(args, "--"+f.Name+"="+f.Value.String())
		}
	})
	return args
}

// buildFleet compiles the program and returns its path. Go's cache makes repeated builds fast.
func (o *options) buildFleet(ctx context.Context) (string, error) {
	cache, err := o.cache()
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache.Source, "..", "..", "..")
	program := filepath.Join(root, "_output", "bin", "fleet")
	build := exec.CommandContext(ctx, "go", "build", "-C", root, "-o", program, "./test/fleet/cmd")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	build.Env = os.Environ()
	if os.Getenv("CGO_CFLAGS") == "" { // as in the Makefile: NVIDIA's headers mark functions as deprecated
		build.Env = append(build.Env, "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	}
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build test/fleet/cmd: %w", err)
	}
	return program, nil
}
