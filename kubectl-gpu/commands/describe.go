// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/why"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

func describeCommand(p *plugin) *cobra.Command {
	var f filter
	var o output
	cmd := &cobra.Command{
		Use:   "describe NODE|GPU...",
		Short: "Show the attributes, capacity, health and holders of GPUs.",
		Long: "Show the attributes, capacity, taints, health and holders of GPUs. A GPU is named NODE/DEVICE, by its " +
			"device name, or by its UUID.",
		Example: "  kubectl gpu describe node-1/gpu-3b-00-0",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.names = args
			return p.describe(cmd.Context(), f, o)
		},
		ValidArgsFunction: p.complete(p.namesOf((*GPU).Ref)),
	}
	f.addDriver(cmd)
	o.addFlags(p, cmd)
	return cmd
}

func (p *plugin) describe(ctx context.Context, f filter, o output) error {
	found, s, err := p.gpus(ctx, f)
	if len(found) == 0 {
		return err
	}
	for _, g := range found {
		g.Device = g.device
	}
	return errors.Join(printEach(p, o, "GPUList", found, describeGPU), err, s.Err())
}

// describeGPU prints one GPU in the way of kubectl describe.
func describeGPU(g *GPU, out io.Writer) error {
	w := printers.GetNewTabWriter(out)
	for _, line := range [][2]string{{"Name", g.Name}, {"Node", g.Node}, {"Driver", g.Driver}, {"Pool", g.Pool},
		{"UUID", g.UUID}, {"Model", g.Model}, {"Compute capability", g.ComputeCapability},
		{"Memory", memoryCell(g.Memory)}, {"Cores", coresCell(g.Cores)}, {"Sharing", sharingCell(g)},
		{"Health", healthOf(g)}} {
		fmt.Fprintf(w, "%s:\t%s\n", line[0], why.Printable(cmp.Or(line[1], none)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	describeDevice(out, g)
	return describeHolders(out, g)
}

// healthOf says in one line whether new claims can get the GPU.
func healthOf(g *GPU) string {
	switch {
	case slices.ContainsFunc(g.Taints, Taint.sick):
		return "tainted: new claims do not get it"
	case slices.ContainsFunc(g.Taints, Taint.prevents):
		return "kept by kubectl gpu reserve: only claims that tolerate the taint get it"
	case g.NodeProblem != "":
		return "the node is " + g.NodeProblem
	case len(g.Taints) > 0:
		return "tainted for information only"
	}
	return "no taints"
}

func describeDevice(out io.Writer, g *GPU) {
	section(out, "Taints", g.Taints, func(t Taint) string {
		line := fmt.Sprintf("%s, for %s", t, age(t.Since))
		if t.Remedy != "" {
			return line + ": " + t.Remedy
		}
		for _, known := range inventory.AllTaints {
			if known.Key == t.Key {
				line += ": " + known.Meaning
			}
		}
		return line
	})
	section(out, "Partitions", g.Partitions, func(p Partition) string {
		if p.Free {
			return p.Name + " (" + p.Profile + "), free"
		}
		return p.Name + " (" + p.Profile + ")"
	})
	if g.device == nil {
		return
	}
	section(out, "Attributes", slices.Sorted(maps.Keys(g.device.Attributes)), func(n resourceapi.QualifiedName) string {
		return string(n) + "=" + value(g.device.Attributes[n])
	})
	section(out, "Capacity", slices.Sorted(maps.Keys(g.device.Capacity)), func(n resourceapi.QualifiedName) string {
		quantity := g.device.Capacity[n].Value
		return string(n) + "=" + quantity.String()
	})
}

// remedy says what is wrong with a GPU that has the taint, and what a person can do. "": the taint is not about health.
func (g *GPU) remedy(t resourceapi.DeviceTaint) string {
	cause := health.Cause(t.Value)
	switch t.Key {
	case inventory.TaintXID:
		number, err := strconv.ParseUint(t.Value, 10, 64)
		if err != nil {
			return ""
		}
		cause = health.XIDCause(number)
	case inventory.TaintUnhealthy:
	default:
		return ""
	}
	meaning, advice := health.Describe(cause)
	return fmt.Sprintf("%s: %s What to do: %s", cause.Title(), meaning, health.OfGPU(advice, cmp.Or(g.UUID, "INDEX")))
}

// section prints a title and indented lines, or none.
func section[T any](out io.Writer, title string, all []T, line func(T) string) {
	if len(all) == 0 {
		fmt.Fprintf(out, "%s:  %s\n", title, none)
		return
	}
	fmt.Fprintf(out, "%s:\n", title)
	for _, one := range all {
		fmt.Fprintf(out, "  %s\n", why.Printable(line(one)))
	}
}

// value returns the text of an attribute.
func value(a resourceapi.DeviceAttribute) string {
	switch {
	case a.StringValue != nil:
		return strconv.Quote(*a.StringValue)
	case a.VersionValue != nil:
		return *a.VersionValue
	case a.IntValue != nil:
		return strconv.FormatInt(*a.IntValue, 10)
	case a.BoolValue != nil:
		return strconv.FormatBool(*a.BoolValue)
	}
	return strings.TrimSpace(a.String()) // of a type that is newer than this program
}

func describeHolders(out io.Writer, g *GPU) error {
	if len(g.Holders) == 0 {
		fmt.Fprintf(out, "Held by:  %s\n", holdersCell(g, 0))
		return nil
	}
	fmt.Fprintln(out, "Held by:")
	t := table{header: []string{"  NAMESPACE", "CLAIM", "DEVICE", "MEMORY", "CORES", "PODS", "SINCE", "PROBLEM"}}
	for _, h := range g.Holders {
		problem := h.Problem
		if problem == "" && h.IdleSince != nil {
			problem = "idle for " + age(h.IdleSince)
		}
		t.add("  "+h.Namespace, h.Claim, h.Device, size(h.Memory), limit(h.Cores), joined(h.Pods), age(h.Since),
			cmp.Or(problem, none))
	}
	return t.write(out, output{})
}

// limit returns the cores of a holder. A share of memory alone has no limit.
func limit(cores int64) string {
	if cores == 0 {
		return "no limit"
	}
	return inPercent(cores)
}

// complete completes arguments with names, but for those given already.
func (p *plugin) complete(names func(ctx context.Context, given []string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, given []string, begun string) ([]string, cobra.ShellCompDirective) {
		if p.connect() != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		all := slices.DeleteFunc(names(cmd.Context(), given), func(name string) bool {
			return name == "" || slices.Contains(given, name) || !strings.HasPrefix(name, begun)
		})
		slices.Sort(all)
		return slices.Compact(all), cobra.ShellCompDirectiveNoFileComp
	}
}

// namesOf returns names of the GPUs.
func (p *plugin) namesOf(name func(*GPU) string) func(context.Context, []string) []string {
	return func(ctx context.Context, _ []string) (all []string) {
		s := p.read(ctx, cluster.Slices)
		for _, g := range gpusOf(s, driversOf(s.Slices)) {
			all = append(all, name(g))
		}
		return all
	}
}
