// SPDX-License-Identifier: Apache-2.0

package simctl

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

func unplugCommand(dir *string) *cobra.Command {
	return busCommand(dir, "unplug GPU", "Let a GPU fall off the bus: NVML answers ERROR_GPU_IS_LOST to all calls "+
		"about it", laidOut((*node.Node).Unplug))
}

func plugCommand(dir *string) *cobra.Command {
	return busCommand(dir, "plug GPU", "Put an unplugged GPU back: the same one, set as after a start of the machine",
		laidOut((*node.Node).Plug))
}

// busCommand returns a command that changes what is on the PCI bus.
func busCommand(dir *string, use, short string, do func(n *simulator.Node, gpu string) error) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := simulator.Attach(*dir)
			if err != nil {
				return err
			}
			return do(n, args[0])
		},
	}
}

// laidOut lays out the driver root after the change: a GPU that vfio-pci has is in /sys only.
func laidOut(change func(n *node.Node, gpu string) error) func(n *simulator.Node, gpu string) error {
	return func(n *simulator.Node, gpu string) error {
		if err := change(n.Node, gpu); err != nil {
			return err
		}
		return n.LayOut(simulator.Programs{})
	}
}

func addCommand(dir *string) *cobra.Command {
	var like, pci string
	c := &cobra.Command{
		Use:   "add --like GPU",
		Short: "Put one more GPU into the machine, and print its name",
		Long: "Put one more GPU into the machine, of the same model as another, and print its name. It gets a UUID " +
			"of its own, and the next minor\n" +
			"number. This makes a device node, so it needs the plugin's container, which is privileged, or root on " +
			"the node.",
		Example: "  simctl add --like gpu-1b-00-0\n  simctl add --like 0 --pci 0000:1c:00.0",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var at hwprofile.Address
			var err error
			if pci != "" {
				if at, err = hwprofile.ParseAddress(pci); err != nil {
					return err
				}
			}
			n, err := simulator.Attach(*dir)
			if err != nil {
				return err
			}
			added, err := n.Add(like, at)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), added.Name)
			return err
		},
	}
	c.Flags().StringVar(&like, "like", "", "the GPU that the new one is like (required)")
	c.Flags().StringVar(&pci, "pci", "", "where it is on the PCI bus (default: the next bus that is free)")
	_ = c.MarkFlagRequired("like") // the flag is there
	return c
}

func removeCommand(dir *string) *cobra.Command {
	return busCommand(dir, "remove GPU", "Take a GPU out for good, as if the machine had been started without it",
		(*simulator.Node).Remove)
}

func aerCommand(dir *string) *cobra.Command {
	var count int
	c := &cobra.Command{
		Use:   "aer GPU " + strings.Join(node.AERKinds, "|"),
		Short: "Let a GPU report a PCIe error, which the kernel counts in sysfs, whatever driver the GPU has",
		Args:  cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := simulator.Attach(*dir)
			if err != nil {
				return err
			}
			return n.CountAER(args[0], args[1], count)
		},
	}
	c.Flags().IntVar(&count, "count", 1, "how many of them")
	return c
}

func reloadCommand(dir *string) *cobra.Command {
	var version string
	var swap []string
	c := &cobra.Command{
		Use:   "reload",
		Short: "Load the driver anew, as an update of it does",
		Long: "Load the driver anew, as an update of it does. Compute modes and time slices are as after a start of " +
			"the machine then.",
		Example: "  simctl reload --driver 590.44.01\n  simctl reload --swap-minors 0,1",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			n, err := simulator.Attach(*dir)
			if err != nil {
				return err
			}
			return n.ReloadDriver(version, swap)
		},
	}
	c.Flags().StringVar(&version, "driver", "", "its version (default: as it is)")
	c.Flags().StringSliceVar(&swap, "swap-minors", nil, "two GPUs, each of which gets the minor number of the other")
	return c
}
