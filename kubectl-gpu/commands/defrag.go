// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/moves"
	"github.com/gpudra/gpu-dra-driver/internal/why"
)

type defragOptions struct {
	filter // only of a driver
	moves.DefragOptions
	apply   bool
	timeout time.Duration
}

func defragCommand(p *plugin) *cobra.Command {
	var f defragOptions
	var o output
	cmd := &cobra.Command{
		Use:   "defrag",
		Short: "Find the fewest pods to move so that a whole GPU, or a node, is free; --apply moves them.",
		Long: "Find the fewest pods that must move so that a whole GPU is free, or with --node or --nodes all GPUs " +
			"of a node. Nothing is changed without --apply. That evicts the pods one after the other, as their " +
			"PodDisruptionBudgets allow, and keeps their replacements away from the GPUs with DeviceTaintRules. Pods " +
			"that nothing would create again stay. The exit code is 1 if moves free nothing.",
		Example: "  kubectl gpu defrag\n  kubectl gpu defrag --node node-1\n  kubectl gpu defrag --apply",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return p.defrag(cmd.Context(), f, o) },
	}
	cmd.Flags().StringVar(&f.Node, "node", "", "Free all GPUs of this node.")
	cmd.Flags().BoolVar(&f.Nodes, "nodes", false, "Free all GPUs of the node for which the fewest pods move.")
	cmd.Flags().BoolVar(&f.Jobs, "with-jobs", false,
		"Also move pods of jobs, which run to an end. An eviction counts as a failure, and work may be lost.")
	cmd.Flags().BoolVar(&f.apply, "apply", false, "Evict the pods. It does not ask.")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "How long --apply waits for each pod: for its "+
		"PodDisruptionBudgets, its end, and its replacement.")
	cmd.MarkFlagsMutuallyExclusive("node", "nodes")
	f.addDriver(cmd)
	o.addFlags(p, cmd)
	return cmd
}

func (p *plugin) defrag(ctx context.Context, f defragOptions, o output) error {
	read := func(ctx context.Context) *cluster.Snapshot { return p.readAll(ctx, "", why.Manifest{}) }
	s := read(ctx)
	if f.Node != "" {
		f.names = []string{f.Node}
	}
	all, err := f.candidates(s)
	if err != nil {
		return err
	}
	if f.Node != "" && !slices.ContainsFunc(all, func(g *GPU) bool { return g.Node == f.Node }) {
		return fmt.Errorf("--node needs a node; %q is a GPU", f.Node)
	}
	if f.Drivers = driversOf(s.Slices); f.driver != "" {
		f.Drivers = []string{f.driver}
	}
	left := leftRules(s.TaintRules)
	if left != "" {
		fmt.Fprintln(p.ErrOut, "Warning:", left)
	}
	plan, err := moves.Defrag(ctx, s, f.DefragOptions)
	if err != nil {
		return err
	}
	err = printEach(p, o, "DefragmentationList", []*moves.Defragmentation{plan},
		func(plan *moves.Defragmentation, _ io.Writer) error { return p.printPlan(plan, o) })
	switch {
	case err != nil || plan.Candidates == 0:
		return err
	case len(plan.Frees) == 0:
		return errors.New("nothing can be gained: no GPU can be freed by moves of pods to GPUs that are in use")
	case !f.apply || len(plan.Moves) == 0:
		return nil
	case left != "":
		return errors.New("nothing was moved, because of the DeviceTaintRules of another run")
	case s.TaintRules == nil:
		return fmt.Errorf("nothing was moved: %w. Without one, the scheduler may put each pod back where it was",
			errNoRules)
	}
	m := mover{client: p.client, out: p.ErrOut, timeout: f.timeout, poll: time.Second, read: read,
		options: f.DefragOptions}
	if err := m.apply(ctx, plan); err != nil {
		return err
	}
	out := p.Out
	if o.printer != nil { // that has the plan only
		out = p.ErrOut
	}
	fmt.Fprintf(out, "%s free now.\n", freed(plan))
	return nil
}

// leftRules says that there are rules of a run that has not ended, or was killed; empty: there are none.
func leftRules(all []*resourceapi.DeviceTaintRule) string {
	n := 0
	for _, r := range all {
		if r.Labels[ruleLabel] == ruleOwner {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s of kubectl gpu defrag keep pods away from GPUs. If no other run is going on, remove them: "+
		"kubectl delete devicetaintrules -l %s=%s", count(n, "DeviceTaintRule"), ruleLabel, ruleOwner)
}

// printPlan prints the moves, what they free, and what stays.
func (p *plugin) printPlan(plan *moves.Defragmentation, o output) error {
	t := table{header: []string{"POD", "DEVICE", "FROM", "PROBABLY TO", "AMOUNT"}}
	for _, m := range plan.Moves {
		for _, d := range m.Devices {
			amount := size(d.Memory)
			if d.Cores > 0 {
				amount += fmt.Sprintf(", %d%%", d.Cores)
			}
			t.add(m.Namespace+"/"+m.Pod, d.Device, d.Node, d.ToNode+"/"+d.ToDevice, amount)
		}
	}
	if len(t.rows) > 0 {
		if err := p.printTable(t, o); err != nil {
			return err
		}
	}
	fmt.Fprintln(p.Out, why.Printable(planText(plan)))
	for _, note := range plan.Notes {
		fmt.Fprintln(p.Out, "note:", why.Printable(note))
	}
	return nil
}

// planText says what is free afterwards, and what cannot move.
func planText(plan *moves.Defragmentation) string {
	var text string
	switch {
	case plan.Candidates == 0:
		text = "Nothing to do: pods share no GPU that could be free."
	case len(plan.Frees) == 0:
		text = fmt.Sprintf("Moves free none of the %d candidates.", plan.Candidates)
	case len(plan.Moves) == 0:
		text = freed(plan) + " free already."
	default:
		text = fmt.Sprintf("%s free after %s.", freed(plan), count(len(plan.Moves), "move"))
	}
	var stays []string
	pods := 0
	for _, s := range plan.Stays {
		pods += s.Pods
		more := ""
		if n := s.Pods - len(s.Examples); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		stays = append(stays, fmt.Sprintf("%s (%s%s)", s.Reason, strings.Join(s.Examples, ", "), more))
	}
	if pods > 0 {
		text += fmt.Sprintf(" %s cannot move: %s.", count(pods, "pod"), strings.Join(stays, "; "))
	}
	if plan.NotTried != "" {
		text += " Not tried: " + plan.NotTried + "."
	}
	return text
}

// freed says that the GPUs that the plan frees "are", or the one "is".
func freed(plan *moves.Defragmentation) string {
	var all []string
	for _, g := range plan.Frees {
		all = append(all, g.Ref())
	}
	if len(all) == 1 {
		return all[0] + " is"
	}
	return strings.Join(all, ", ") + " are"
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
