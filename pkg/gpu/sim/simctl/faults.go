// SPDX-License-Identifier: Apache-2.0

package simctl

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
)

func failCommand(dir *string) *cobra.Command {
	return faultCommand(dir, &cobra.Command{
		Use:   "fail GPU CALL|all ERROR",
		Short: "Make an NVML call of a GPU answer an error, or all of them",
		Example: "  simctl fail gpu-1b-00-0 GetMemoryInfo ERROR_UNKNOWN\n" +
			"  simctl fail 0 GetUUID ERROR_TIMEOUT --after 3 --times 1",
	}, func(text string) (node.Fault, error) {
		e, err := node.ParseError(text)
		return node.Fault{Error: e}, err
	})
}

func slowCommand(dir *string) *cobra.Command {
	return faultCommand(dir, &cobra.Command{
		Use:     "slow GPU CALL|all DURATION",
		Short:   "Make an NVML call of a GPU take so long, or all of them",
		Long:    "Make an NVML call of a GPU take so long, or all of them. heal ends calls that are waiting, too.",
		Example: "  simctl slow gpu-1b-00-0 GetMinorNumber 3s\n  simctl slow 0 all 100ms --times 20",
	}, func(text string) (node.Fault, error) {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return node.Fault{}, fmt.Errorf("duration %q: want one such as 100ms, 3s or 1m", text)
		}
		return node.Fault{Delay: d}, nil
	})
}

// faultCommand is a command that makes something wrong with calls: what its third argument says.
func faultCommand(dir *string, c *cobra.Command, parse func(string) (node.Fault, error)) *cobra.Command {
	var after, times int
	c.Args = cobra.ExactArgs(3)
	c.Flags().IntVar(&after, "after", 0, "spare that many calls first")
	c.Flags().IntVar(&times, "times", 0, "then befall that many calls (0: all that come)")
	c.RunE = func(_ *cobra.Command, args []string) error {
		fault, err := parse(args[2])
		if err != nil {
			return err
		}
		fault.After, fault.Times = after, times
		n, err := node.Attach(*dir)
		if err != nil {
			return err
		}
		return n.Inject(args[0], args[1], fault)
	}
	return c
}

func healCommand(dir *string) *cobra.Command {
	return gpuCommand(dir, "heal GPU", "Take away what fail and slow did to a GPU", (*node.Node).Heal)
}

// gpuCommand is a command that does one thing to a GPU.
func gpuCommand(dir *string, use, short string, do func(n *node.Node, gpu string) error) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			return do(n, args[0])
		},
	}
}
