// SPDX-License-Identifier: Apache-2.0

// Package simctl is the command line of a simulated node: it prints and changes the node and injects faults, while the
// driver uses it.
package simctl

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// Command returns the command "simctl".
func Command() *cobra.Command {
	dir := node.DefaultDir
	c := &cobra.Command{
		Use:   "simctl",
		Short: "Show and change the simulated GPUs of this node",
		Long: "Show and change the simulated GPUs of this node. The driver, and nvidia-smi in containers, see a " +
			"change within a second.\n" +
			"A GPU is given by its device name (gpu-1b-00-0), index, UUID or PCI address.",
		Args:         cobra.NoArgs,
		RunE:         func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceUsage: true,
	}
	c.PersistentFlags().StringVar(&dir, "dir", dir, "directory of the simulated node")
	c.AddCommand(
		printCommand(&dir), setCommand(&dir),
		failCommand(&dir), slowCommand(&dir), healCommand(&dir),
		xidCommand(&dir), eccCommand(&dir), clocksCommand(&dir), aerCommand(&dir), healthCommand(&dir),
		resetCommand(&dir), licenseCommand(&dir),
		mpsCommand(&dir),
		migCommand(&dir), partitionCommand(&dir), vgpuCommand(&dir), processCommand(&dir),
		unplugCommand(&dir), plugCommand(&dir), addCommand(&dir), removeCommand(&dir),
		reloadCommand(&dir), unloadCommand(&dir), loadCommand(&dir),
		crashCommand(&dir), stepsCommand(&dir),
		profilesCommand(), profileCommand())
	for _, sub := range c.Commands() {
		sub.Args = withUsage(sub.Args)
	}
	return c
}

// withUsage says how a command is called where its arguments are wrong.
func withUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if check == nil || check(c, args) == nil {
			return nil
		}
		return fmt.Errorf("these are not its arguments; write: %s", c.UseLine())
	}
}

func printCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use: "print",
		Short: "Print the node: its GPUs and their partitions, what has been set, what fails or takes long, what has " +
			"been ordered",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			v, err := n.View()
			if err == nil {
				_, err = fmt.Fprint(c.OutOrStdout(), v)
			}
			return err
		},
	}
}

func setCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "set GPU NAME=VALUE...",
		Short: "Set compute-mode, interval or memory-used of a GPU",
		Example: "  simctl set gpu-1b-00-0 compute-mode=EXCLUSIVE_PROCESS memory-used=5Gi\n  simctl set 0 " +
			"interval=Long",
		Args: cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			changes, err := parseSettings(args[1:])
			if err != nil {
				return err
			}
			for _, change := range changes {
				if err := change(n, args[0]); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// parseSettings parses all settings before the first one is applied.
func parseSettings(args []string) ([]func(n *node.Node, gpu string) error, error) {
	var out []func(*node.Node, string) error
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		switch {
		case ok && name == "compute-mode":
			mode, err := hwprofile.ParseComputeMode(value)
			if err != nil {
				return nil, err
			}
			out = append(out, func(n *node.Node, gpu string) error { return n.SetComputeMode(gpu, mode) })
		case ok && name == "interval":
			slice, err := hwprofile.ParseTimeSlice(value)
			if err != nil {
				return nil, err
			}
			out = append(out, func(n *node.Node, gpu string) error { return n.SetTimeSlice(gpu, slice) })
		case ok && name == "memory-used":
			bytes, err := parseBytes(name, value)
			if err != nil {
				return nil, err
			}
			out = append(out, func(n *node.Node, gpu string) error { return n.SetMemoryUsed(gpu, bytes) })
		default:
			return nil, fmt.Errorf("setting %q: want compute-mode=%s, interval=%s or memory-used=BYTES", arg,
				strings.Join(hwprofile.ComputeModes(), "|"), strings.Join(hwprofile.TimeSlices(), "|"))
		}
	}
	return out, nil
}

// parseBytes parses the value of the setting with that name.
func parseBytes(name, value string) (uint64, error) {
	q, err := resource.ParseQuantity(value)
	if _, whole := q.AsInt64(); err != nil || q.Sign() < 0 || !whole {
		return 0, fmt.Errorf("%s %q: want a number of bytes such as 5Gi, 512Mi or 0", name, value)
	}
	return uint64(q.Value()), nil
}

func profilesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "profiles",
		Short: "List the built-in profiles",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			for _, name := range node.Names() {
				p, err := node.BuiltIn(name)
				if err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "%-12s %s\n", name, p.Description)
			}
			return nil
		},
	}
}

func profileCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "profile NAME",
		Short: "Print a built-in profile as YAML, to start one of your own from",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := node.BuiltIn(args[0])
			if err != nil {
				return err
			}
			fmt.Fprint(c.OutOrStdout(), p.YAML())
			return nil
		},
	}
}
