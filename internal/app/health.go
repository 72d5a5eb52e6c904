// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpudra/gpu-dra-driver/pkg/health"
)

// requestTimeout is how long the plugin may take to do what the command asks for. Without inotify it notices the
// request at its next look.
const requestTimeout = 30 * time.Second

// healthCommand is the command "health".
func healthCommand() *cobra.Command {
	var (
		o        options
		clear    string
		closeFor time.Duration
		open     bool
	)
	cmd := toolCommand(&cobra.Command{
		Use:   "health",
		Short: "Print what is, and was, wrong with the GPUs; clear it; close NVML",
		Long: "Print what is wrong with the GPUs of this node, and what was within the last 24 hours, as the running " +
			"plugin knows it.\n\n" +
			"--clear ends everything that is wrong with a GPU; what NVML still reports begins again.\n" +
			"--close-nvml makes the plugin close NVML, so that GPUs can be reset and the driver unloaded. Meanwhile " +
			"its GPUs are tainted.",
		Example: "  dra-kubelet-plugin health\n  dra-kubelet-plugin health --clear gpu-3b-00-0\n" +
			"  dra-kubelet-plugin health --close-nvml 5m\n  dra-kubelet-plugin health --open-nvml",
	}, pflag.NewFlagSet("", pflag.ContinueOnError), func(cmd *cobra.Command) error {
		dir := o.directory()
		saved, err := health.Load(dir)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		switch {
		case cmd.Flags().Changed("clear"):
			return clearHealth(out, dir, saved, clear)
		case cmd.Flags().Changed("close-nvml"):
			if closeFor < time.Second { // the plugin is told the time in seconds
				return errors.Join(fmt.Errorf("--close-nvml %s: want at least 1s, such as 5m; --open-nvml opens NVML",
					closeFor), errUsage)
			}
			return closeNVML(out, dir, closeFor)
		case open:
			return closeNVML(out, dir, 0)
		}
		return printHealth(out, saved)
	})
	f := cmd.Flags()
	o.addDirectoryFlags(f)
	f.StringVar(&clear, "clear", "", "the GPU, by its name in ResourceSlices, that is well again")
	f.DurationVar(&closeFor, "close-nvml", 0, "how long NVML is to be closed, such as 5m")
	f.BoolVar(&open, "open-nvml", false, "end --close-nvml; an error if NVML stays closed for another reason")
	cmd.MarkFlagsMutuallyExclusive("clear", "close-nvml", "open-nvml")
	return cmd
}

// clearHealth asks the plugin to clear the GPU, and waits until it has.
func clearHealth(out io.Writer, dir string, saved health.Saved, device string) error {
	var names []string
	for _, g := range saved.GPUs {
		names = append(names, g.Name)
	}
	if !slices.Contains(names, device) {
		return fmt.Errorf("--clear %s: no such GPU; this node has %s", device,
			cmp.Or(strings.Join(names, ", "), "none"))
	}
	if err := health.RequestClear(dir, device); err != nil {
		return err
	}
	if !eventually(func() bool { return !health.ClearRequested(dir, device) }) {
		return fmt.Errorf("%s is not cleared yet: does the plugin run? It does so when it starts", device)
	}
	_, err := fmt.Fprintf(out, "%s is cleared. What NVML still reports begins again.\n", device)
	return err
}

// closeNVML asks the plugin to close NVML for so long, or to open it (0), and waits until it knows. It is an error if
// NVML stays closed for another reason.
func closeNVML(out io.Writer, dir string, lasts time.Duration) error {
	now := time.Now()
	if err := health.RequestRelease(dir, now, lasts); err != nil {
		return err
	}
	var saved health.Saved
	if !eventually(func() bool {
		var err error
		saved, err = health.Load(dir)
		return err == nil && ((saved.Release != "") == (lasts != 0) || saved.ReleaseOtherwise())
	}) {
		return errors.New("the plugin has not answered yet: does it run?")
	}
	if lasts == 0 && saved.Release != "" {
		return fmt.Errorf("NVML stays closed: %s", saved.Release)
	}
	text := "NVML is open.\n"
	if lasts != 0 {
		text = fmt.Sprintf("NVML is closed within 5 s, until %s. The GPUs of this node are tainted meanwhile.\n",
			now.Add(lasts).UTC().Format(time.RFC3339))
	}
	_, err := io.WriteString(out, text)
	return err
}

func eventually(done func() bool) bool {
	for end := time.Now().Add(requestTimeout); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if done() {
			return true
		}
	}
	return false
}

// printHealth prints a table of the GPUs, and below each what is and was wrong with it.
func printHealth(out io.Writer, saved health.Saved) error {
	if saved.Release != "" {
		fmt.Fprintf(out, "NVML is closed: %s\n", saved.Release)
	}
	if len(saved.GPUs) == 0 {
		_, err := fmt.Fprintln(out, "The plugin has not looked at the GPUs of this node yet.")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, line := range health.Lines(saved) {
		fmt.Fprintln(table, line)
	}
	return table.Flush()
}
