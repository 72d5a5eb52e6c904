// SPDX-License-Identifier: Apache-2.0

package simctl

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// eventFlags are how often and how fast an event happens.
type eventFlags struct {
	count int
	rate  float64 // per second; 0: all at once
}

// register defines the flags of the command.
func (f *eventFlags) register(c *cobra.Command) {
	c.Flags().IntVar(&f.count, "count", 1, "how many of them happen")
	c.Flags().Float64Var(&f.rate, "rate", 0, "so many per second (0: all at once)")
}

// batchPeriod is how often events of a rate happen.
const batchPeriod = 5 * time.Millisecond

// largestBatch is how many events happen at once.
const largestBatch = 1000

// emit lets the event happen and prints what happened.
func (f *eventFlags) emit(c *cobra.Command, n *node.Node, event node.Event, what string) error {
	if f.count < 1 || f.rate < 0 {
		return errors.New("--count must be at least 1, and --rate at least 0")
	}
	for start, done := time.Now(), 0; done < f.count; {
		due := min(f.count, done+largestBatch)
		if f.rate > 0 {
			due = min(due, 1+int(time.Since(start).Seconds()*f.rate))
		}
		if due == done {
			time.Sleep(batchPeriod)
			continue
		}
		if err := n.Emit(slices.Repeat([]node.Event{event}, due-done)...); err != nil {
			return err
		}
		done = due
	}
	times := ""
	if f.count > 1 {
		times = fmt.Sprintf(", %d times", f.count)
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "%s%s\n", what, times)
	return err
}

func xidCommand(dir *string) *cobra.Command {
	var flags eventFlags
	c := &cobra.Command{
		Use:   "xid GPU|PARTITION NUMBER",
		Short: "Let a GPU report an XID error",
		Long: "Let a GPU report an XID error to those that wait for its events. A partition is given as print shows " +
			"it, gpu-1b-00-0/1g.10gb@4,\nor by its UUID: the event then has its instances. An XID changes nothing " +
			"else; see \"health\" and \"unplug\".",
		Example: "  simctl xid gpu-1b-00-0 79\n  simctl xid 0/1g.10gb@4 43\n  simctl xid 0 31 --count 5000 --rate 1000",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			number, err := strconv.ParseUint(args[1], 10, 64)
			if err != nil {
				return fmt.Errorf("XID %q: want a number from 1 to %d", args[1], node.MaxXID)
			}
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			event, err := n.NewEvent(args[0], node.EventXID, number)
			if err != nil {
				return err
			}
			return flags.emit(c, n, event, fmt.Sprintf("%s reports XID %d", args[0], number))
		},
	}
	flags.register(c)
	return c
}

func eccCommand(dir *string) *cobra.Command {
	return eventCommand(dir, "ecc GPU single|double", "Let a GPU report an ECC error of a single bit or of two",
		map[string]node.EventType{"single": node.EventSingleBitECC, "double": node.EventDoubleBitECC})
}

func clocksCommand(dir *string) *cobra.Command {
	return eventCommand(dir, "event GPU clocks|pstate", "Let a GPU report that its clocks or its performance state "+
		"have changed", map[string]node.EventType{"clocks": node.EventClock, "pstate": node.EventPState})
}

// eventCommand returns a command whose second argument names the event.
func eventCommand(dir *string, use, short string, types map[string]node.EventType) *cobra.Command {
	var flags eventFlags
	name, _, _ := strings.Cut(use, " ")
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			t, ok := types[args[1]]
			if !ok {
				return fmt.Errorf("%s %q: want %s", name, args[1],
					strings.Join(slices.Sorted(maps.Keys(types)), " or "))
			}
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			event, err := n.NewEvent(args[0], t, 0)
			if err != nil {
				return err
			}
			return flags.emit(c, n, event, fmt.Sprintf("%s reports %s %s", args[0], name, args[1]))
		},
	}
	flags.register(c)
	return c
}

func healthCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "health GPU NAME=VALUE...",
		Short: "Set what NVML reports to be wrong with a GPU",
		Long: "Set what NVML reports to be wrong with a GPU; print shows it:\n" +
			"  recovery-action=none|reset|reboot|drain-p2p|drain-and-reset|recover-imex-domain|bus-reset|" +
			"system-reboot\n" +
			"  remapped-rows=none|pending|failed    rows of memory; from Ampere on, with ECC\n" +
			"  retired-pages=none|pending           pages of memory; before Ampere, with ECC\n" +
			"  nvlink-down=none|LINK,...            NVLinks that are not active\n" +
			"  fabric=healthy|unhealthy|not-started the GPU's registration with the NVLink fabric\n" +
			"  slowdown=none|thermal|power-brake    why the hardware slows the GPU down\n" +
			"  pcie=profile|xLANESgGENERATION       the present PCIe link, as x8g3\n" +
			"  ecc=profile|off                      whether errors of the memory are corrected\n" +
			"  performance=profile|P0..P15          the performance state; P0 is that of a GPU in use",
		Example: "  simctl health gpu-1b-00-0 recovery-action=drain-and-reset remapped-rows=pending\n" +
			"  simctl health 0 nvlink-down=3,4",
		Args: cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			change, err := node.ParseHealth(args[1:])
			if err != nil {
				return err
			}
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			if err := n.ChangeHealth(args[0], change); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s has %s\n", args[0], strings.Join(args[1:], " "))
			return err
		},
	}
}

func licenseCommand(dir *string) *cobra.Command {
	states := map[string]hwprofile.Switch{"licensed": hwprofile.Enabled, "unlicensed": hwprofile.Disabled}
	return &cobra.Command{
		Use:   "license GPU licensed|unlicensed",
		Short: "Give a vGPU its license, or take it",
		Args:  cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			state, ok := states[args[1]]
			if !ok {
				return fmt.Errorf("license %q: want licensed or unlicensed", args[1])
			}
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			return n.SetLicense(args[0], state)
		},
	}
}

func resetCommand(dir *string) *cobra.Command {
	return reporting(gpuCommand(dir, "reset GPU", "Reset a GPU as nvidia-smi --gpu-reset does: refused while a "+
		"process has NVML open or uses the GPU", (*node.Node).Reset), "GPU was reset")
}

func unloadCommand(dir *string) *cobra.Command {
	return reporting(driverCommand(dir, "unload", "Unload the driver as rmmod does: refused while a process has NVML "+
		"open or uses a GPU", (*node.Node).Unload), "the driver is not loaded")
}

func loadCommand(dir *string) *cobra.Command {
	return reporting(driverCommand(dir, "load", "Load the driver after unload", (*node.Node).Load),
		"the driver is loaded")
}

// driverCommand returns a command that does one thing to the driver.
func driverCommand(dir *string, use, short string, do func(n *node.Node) error) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			return do(n)
		},
	}
}

// reporting makes the command print what it did. The text has GPU in place of its argument.
func reporting(c *cobra.Command, text string) *cobra.Command {
	do := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := do(c, args); err != nil {
			return err
		}
		_, err := fmt.Fprintln(c.OutOrStdout(), strings.Replace(text, "GPU", strings.Join(args, " "), 1))
		return err
	}
	return c
}
