// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

const policyUsage = `
    Compute Policy -- Control and list compute policies.

    Usage: nvidia-smi compute-policy [options]

    Options include:
    [-i | --id]: GPU device ID's. Provide comma
                 separated values for more than one device

    [-l | --list]: List all compute policies

    [ | --set-timeslice]: Set timeslice config for a GPU:
                          0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG

    [-h | --help]: Display help information

`

// policyOptions are the options of compute-policy.
type policyOptions struct {
	ids, timeSlice string
	list           bool
}

// runPolicy is nvidia-smi compute-policy.
func runPolicy(m Machine, args []string, out, errOut io.Writer) int {
	o, err := parsePolicy(args)
	if err != nil {
		fmt.Fprintln(errOut, err)
		return exitUsage
	}
	if !o.list && o.timeSlice == "" {
		fmt.Fprint(out, policyUsage)
		return exitOK
	}
	v, root, err := m.findLibrary()
	if err != nil {
		return explain(err, out, errOut)
	}
	n, gpus, err := administered(v, root, o.ids)
	if err != nil && !errors.Is(err, errNotFound) {
		return explain(err, out, errOut)
	}
	if len(gpus) == 0 {
		fmt.Fprintln(out, "No devices were found")
		return exitNotFound
	}
	if o.list {
		printPolicies(out, gpus)
		return exitOK
	}
	number, err := strconv.Atoi(o.timeSlice)
	slice := hwprofile.TimeSlice(number)
	if err != nil || !slice.Valid() {
		fmt.Fprintf(out, "Invalid timeslice %q: 0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG\n", o.timeSlice)
		return exitUsage
	}
	return setTimeSlices(n, gpus, slice, out)
}

func parsePolicy(args []string) (policyOptions, error) {
	var o policyOptions
	values := map[string]*string{"-i": &o.ids, "--id": &o.ids, "--set-timeslice": &o.timeSlice}
	for len(args) > 0 {
		name, value, given := strings.Cut(args[0], "=")
		args = args[1:]
		switch {
		case !given && (name == "-l" || name == "--list"):
			o.list = true
			continue
		case !given && (name == "-h" || name == "--help"):
			return policyOptions{}, nil
		}
		to, ok := values[name]
		if !ok {
			return o, fmt.Errorf("nvidia-smi: option %q is not one that compute-policy has; see nvidia-smi "+
				"compute-policy -h", name)
		}
		if !given && len(args) > 0 {
			value, args = args[0], args[1:]
		}
		if value == "" {
			return o, fmt.Errorf("nvidia-smi: option %s: its value is missing", name)
		}
		*to = value
	}
	return o, nil
}

// setTimeSlices stops at the first GPU that refuses, as the real program does. The messages are from a report of a
// Tesla P4.
func setTimeSlices(n *node.Node, gpus []gpu, slice hwprofile.TimeSlice, out io.Writer) int {
	for _, g := range gpus {
		if e := setTimeSlice(n, g, slice); e != "" {
			why := refusal(e)
			fmt.Fprintf(out, "Failed to set timeslice policy with value %s for GPU %d : %s\nFailed to set timeslice "+
				"for requested devices : %s\n",
				slice, g.Index, why, why)
			return exitFor(e)
		}
		fmt.Fprintf(out, "Set timeslice policy to %s for GPU %d\n", slice, g.Index)
	}
	return exitOK
}

func setTimeSlice(n *node.Node, g gpu, slice hwprofile.TimeSlice) hwprofile.Error {
	switch {
	case n == nil:
		return noPermission
	case !g.HasTimeSlice():
		return hwprofile.NotSupported
	}
	// NVML has no such call, so only faults of all calls apply.
	return change(n, g, node.AllCalls, func() error { return n.SetTimeSlice(g.UUID, slice) })
}

const noPermission hwprofile.Error = "ERROR_NO_PERMISSION"

// change applies the faults of the call, then makes the change.
func change(n *node.Node, g gpu, call string, f func() error) hwprofile.Error {
	delay, e, err := n.TakeFault(g.UUID, call)
	time.Sleep(delay)
	if e == "" && err == nil {
		err = f()
	}
	switch {
	case e != "":
		return e
	case errors.Is(err, os.ErrPermission):
		return noPermission
	}
	return node.CodeOf(err)
}

// refusal returns why something was not done, as the real program words it.
func refusal(e hwprofile.Error) string {
	if e == hwprofile.NotSupported {
		return "Not Supported"
	}
	return describe(e)
}

// exitFor is the exit code for an error: its number in NVML, limited to the largest exit code of nvidia-smi.
func exitFor(e hwprofile.Error) int { return min(e.Number(), exitUnknownError) }

func printPolicies(out io.Writer, gpus []gpu) {
	const width = 37
	line := func(text string) { fmt.Fprintf(out, "| %-*s|\n", width-1, text) }
	fmt.Fprintf(out, "+%s+\n", strings.Repeat("-", width))
	line("GPU compute policies:")
	line("GPU     Name             Value")
	fmt.Fprintf(out, "|%s|\n", strings.Repeat("=", width))
	for _, g := range gpus {
		value := "N/A"
		if g.HasTimeSlice() {
			value = g.State.TimeSlice.String()
		}
		line(fmt.Sprintf("%3d     %-16s %s", g.Index, "Timeslice", value))
	}
	fmt.Fprintf(out, "+%s+\n", strings.Repeat("-", width))
}

// runComputeMode is nvidia-smi -c.
func runComputeMode(v *node.View, root string, o options, out, errOut io.Writer) int {
	mode, err := parseComputeMode(o.computeMode)
	if err != nil {
		fmt.Fprintln(errOut, err)
		return exitUsage
	}
	n, gpus, err := administered(v, root, o.ids)
	if err != nil && !errors.Is(err, errNotFound) {
		return explain(err, out, errOut)
	}
	if len(gpus) == 0 {
		fmt.Fprintln(out, "No devices were found")
		return exitNotFound
	}
	for _, g := range gpus {
		e := noPermission
		if n != nil {
			e = change(n, g, "SetComputeMode", func() error { return n.SetComputeMode(g.UUID, mode) })
		}
		switch {
		case e != "":
			fmt.Fprintf(out, "Unable to set the compute mode for GPU %s: %s\nTerminating early due to previous "+
				"errors.\n", busID(g), refusal(e))
			return exitFor(e)
		case g.State.ComputeMode == mode:
			fmt.Fprintf(out, "Compute mode is already set to %s for GPU %s.\n", strings.ToUpper(mode.String()),
				busID(g))
		default:
			fmt.Fprintf(out, "Set compute mode to %s for GPU %s.\n", strings.ToUpper(mode.String()), busID(g))
		}
	}
	fmt.Fprintln(out, "All done.")
	return exitOK
}

func parseComputeMode(s string) (hwprofile.ComputeMode, error) {
	if number, err := strconv.Atoi(s); err == nil && hwprofile.ComputeMode(number).Valid() {
		return hwprofile.ComputeMode(number), nil
	}
	return hwprofile.ParseComputeMode(s)
}
