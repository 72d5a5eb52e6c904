// SPDX-License-Identifier: Apache-2.0

package simctl

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

func crashCommand(dir *string) *cobra.Command {
	var order node.Crash
	var verb string
	var off bool
	c := &cobra.Command{
		Use:   "crash --at N",
		Short: "Let the driver crash at a step of Prepare or Unprepare, once",
		Long: "Let the driver crash at a step of Prepare or Unprepare: the next process of the driver that gets " +
			"there ends as by SIGKILL. The order\n" +
			"is gone before that, so the driver that starts again survives. Steps are the side effects of one call, " +
			"counted from 1; see \"steps\".\n" +
			"\"print\" shows an order that nobody has carried out yet.",
		Example: "  simctl crash --at 3 --verb prepare\n  simctl crash --at 1 --verb unprepare --after\n  simctl " +
			"crash --off",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			if off {
				return n.CancelCrash()
			}
			if order.Verb, err = node.ParseVerb(verb); err != nil {
				return err
			}
			return n.OrderCrash(order)
		},
	}
	c.Flags().IntVar(&order.At, "at", 0, "the step")
	c.Flags().BoolVar(&order.After, "after", false, "right after the step was done; otherwise right before it")
	c.Flags().StringVar(&verb, "verb", "", "only at a step of prepare, or of unprepare")
	c.Flags().BoolVar(&off, "off", false, "take the order back")
	c.MarkFlagsOneRequired("at", "off")
	for _, other := range []string{"at", "after", "verb"} {
		c.MarkFlagsMutuallyExclusive("off", other)
	}
	return c
}

// errNotRecorded means that no steps are recorded.
var errNotRecorded = errors.New(`steps are not recorded; start with "simctl steps --record"`)

func stepsCommand(dir *string) *cobra.Command {
	var record, off bool
	c := &cobra.Command{
		Use:   "steps",
		Short: "Show how many steps the last Prepare and Unprepare had, and which",
		Long: "Show how many steps the last Prepare and the last Unprepare had that went well and had something to " +
			"do, and which.\n" +
			"They are recorded between --record and --off.",
		Example: "  simctl steps --record\n  simctl steps",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			switch {
			case record:
				return n.RecordSteps()
			case off:
				return n.ForgetSteps()
			}
			v, err := n.View()
			if err != nil {
				return err
			}
			if v.Steps == nil {
				return errNotRecorded
			}
			return errors.Join(
				printSteps(c.OutOrStdout(), node.Prepare, v.Steps.Prepare),
				printSteps(c.OutOrStdout(), node.Unprepare, v.Steps.Unprepare))
		},
	}
	c.Flags().BoolVar(&record, "record", false, "record steps from now on")
	c.Flags().BoolVar(&off, "off", false, "record them no more, and forget them")
	c.MarkFlagsMutuallyExclusive("record", "off")
	return c
}

func printSteps(out io.Writer, verb node.Verb, names []string) error {
	_, err := fmt.Fprintln(out, strings.Join(append([]string{string(verb), fmt.Sprint(len(names))}, names...), " "))
	return err
}
