// SPDX-License-Identifier: Apache-2.0

package simctl

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

func failCommand(dir *string) *cobra.Command {
	return faultCommand(dir, &cobra.Command{
		Use:   "fail GPU CALL|all ERROR",
		Short: "Make an NVML call of a GPU answer an error, or all of them",
		Example: "  simctl fail gpu-1b-00-0 GetMemoryInfo ERROR_UNKNOWN\n" +
			"  simctl fail 0 GetUUID ERROR_TIMEOUT --after 3 --times 1",
	}, func(text string) (node.Fault, error) {
		e, err := hwprofile.ParseError(text)
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
		d, err := parseDuration(text)
		return node.Fault{Delay: d}, err
	})
}

// faultCommand returns a command that injects a fault, parsed from its third argument.
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

// gpuCommand returns a command that does one thing to a GPU.
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

func mpsCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "mps GPU slow=DURATION|dead|refusing|wedged|heal",
		Short: "Break or mend the MPS daemons of a GPU",
		Long: "Break or mend the MPS daemons of a GPU: slow ones take so long to start, dead ones die, now and " +
			"whenever they are started,\n" +
			"refusing ones say that they cannot start, while one that runs goes on. The clients of a wedged server " +
			"end, later ones hang,\nand the daemon says nothing, until the server ends. \"heal\" takes away what " +
			"was wrong with them.",
		Example: "  simctl mps gpu-1b-00-0 slow=5s\n  simctl mps 0 dead\n  simctl mps 0 heal",
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			change, err := parseMPS(args[1])
			if err != nil {
				return err
			}
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			return change(n, args[0])
		},
	}
}

func parseMPS(text string) (func(n *node.Node, gpu string) error, error) {
	order := func(f node.MPSFault) func(*node.Node, string) error {
		return func(n *node.Node, gpu string) error { return n.BreakMPS(gpu, f) }
	}
	name, value, _ := strings.Cut(text, "=")
	switch {
	case text == "heal":
		return (*node.Node).HealMPS, nil
	case text == "dead":
		return order(node.MPSFault{Dead: true}), nil
	case text == "refusing":
		return order(node.MPSFault{Refusing: true}), nil
	case text == "wedged":
		return order(node.MPSFault{Wedged: true}), nil
	case name == "slow":
		d, err := parseDuration(value)
		return order(node.MPSFault{Slow: d}), err
	}
	return nil, fmt.Errorf("MPS %q: want slow=DURATION, dead, refusing, wedged or heal", text)
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("duration %q: want one such as 100ms, 3s or 1m", text)
	}
	return d, nil
}
