// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/offer"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

const (
	// maxRules is how many DeviceTaintRules a run creates.
	maxRules = 200
	// ruleTimeout ends the creation of a rule, and the removal of all, which Ctrl-C does not.
	ruleTimeout = 30 * time.Second
)

// Reservation is what is kept for a team or namespace.
type Reservation struct {
	Team string   `json:"team"`
	GPUs []string `json:"gpus"` // NODE/DEVICE
	// Held counts the GPUs of which a claim holds something, also of others than the team.
	Held  int         `json:"held"`
	Rules []string    `json:"rules"` // DeviceTaintRules
	Since metav1.Time `json:"since,omitzero"`
}

func (r *Reservation) add(g *GPU) {
	r.GPUs, r.Held = append(r.GPUs, g.Ref()), r.Held+min(len(g.Holders), 1)
}

type reserveOptions struct {
	filter   // by driver, model and names
	selector string
	gpus     int // 0: all that are selected
	dryRun   bool
}

func reserveCommand(p *plugin) *cobra.Command {
	var f reserveOptions
	var o output
	cmd := &cobra.Command{
		Use:   "reserve [TEAM [NODE|GPU...]]",
		Short: "Keep GPUs for a team or namespace, and list what is kept.",
		Long: "Keep GPUs for a team or namespace, with DeviceTaintRules: only claims that tolerate the taint " +
			cluster.ReservedTaint + "=TEAM get them. What others hold of them, they keep until their claims end. " +
			"Nodes and GPUs are named as for ls. Without a team, list the reservations.",
		Example: "  kubectl gpu reserve vision --gpus 2 --model h100\n  kubectl gpu reserve vision node-1\n" +
			"  kubectl gpu reserve\n  " + endOf("vision"),
		PreRunE: func(_ *cobra.Command, args []string) error { return f.check(args) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return p.reservations(cmd.Context(), f.filter, o)
			}
			return p.reserve(cmd.Context(), args[0], f, o)
		},
		ValidArgsFunction: p.complete(func(ctx context.Context, given []string) []string {
			if len(given) == 0 { // the team
				return nil
			}
			return p.namesOf((*GPU).place)(ctx, given)
		}),
	}
	cmd.Flags().IntVar(&f.gpus, "gpus", 0, "Keep that many of the selected GPUs, idle ones first. Default: all.")
	cmd.Flags().StringVar(&f.selector, "selector", "",
		"Only GPUs whose whole device meets this expression in CEL, as in selectors of claims.")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "Only say which GPUs it would keep.")
	f.addDriver(cmd)
	f.addModel(p, cmd)
	o.addFlags(p, cmd, wide, names)
	return cmd
}

func (p *plugin) reservations(ctx context.Context, f filter, o output) error {
	all, s, err := p.gpus(ctx, f)
	if err != nil {
		return err
	}
	list := reservationsOf(all, s.TaintRules)
	if f.model != "" || f.driver != "" {
		list = slices.DeleteFunc(list, func(r *Reservation) bool { return len(r.GPUs) == 0 })
	}
	t := table{header: []string{"TEAM", "GPUS", "HELD", "AGE", "NAMES"}}
	for _, r := range list {
		t.add(r.Team, fmt.Sprint(len(r.GPUs)), fmt.Sprint(r.Held), age(&r.Since), joined(few(r.GPUs, o.shown())))
	}
	err = printList(p, o, "ReservationList", list, func(r *Reservation) string { return r.Team },
		"No GPUs are kept.", t)
	return errors.Join(err, s.Err())
}

// reservationsOf returns what is kept of the GPUs, and by which rules, sorted by team.
func reservationsOf(all []*GPU, rules []*resourceapi.DeviceTaintRule) (list []*Reservation) {
	of := map[string]*Reservation{}
	entry := func(team string) *Reservation {
		if of[team] == nil {
			of[team] = &Reservation{Team: team, GPUs: []string{}}
			list = append(list, of[team])
		}
		return of[team]
	}
	for _, rule := range rules {
		if team := cluster.KeptFor(rule.Spec.Taint); team != "" {
			r := entry(team)
			r.Rules = append(r.Rules, rule.Name)
			if r.Since.IsZero() || rule.CreationTimestamp.Before(&r.Since) {
				r.Since = rule.CreationTimestamp
			}
		}
	}
	for _, g := range all {
		for _, team := range g.keptFor() {
			entry(team).add(g)
		}
	}
	slices.SortFunc(list, func(a, b *Reservation) int { return cmp.Compare(a.Team, b.Team) })
	return list
}

// keptFor returns who the GPU is kept for.
func (g *GPU) keptFor() (teams []string) {
	for _, t := range g.Taints {
		if team := t.keptFor(); team != "" {
			teams = append(teams, team)
		}
	}
	return teams
}

// endOf is the command that ends the reservation of the team.
func endOf(team string) string {
	return "kubectl delete devicetaintrules -l " + cluster.ReservedTaint + "=" + team
}

func (p *plugin) reserve(ctx context.Context, team string, f reserveOptions, o output) error {
	r, stop := p.reader()
	r.Devices = partitionsAsKinds
	s := r.Read(ctx, cluster.Slices, cluster.Claims, cluster.Nodes)
	stop()
	if err := s.Err(); err != nil {
		return err
	}
	if s.TaintRules == nil {
		return fmt.Errorf("nothing is kept: %w", errNoRules)
	}
	all, err := f.candidates(s)
	if err != nil {
		return err
	}
	chosen, err := f.choose(ctx, all)
	if err != nil {
		return err
	}
	rules, err := reservation(team, s, all, chosen)
	if err != nil {
		return err
	}
	kept := &Reservation{Team: team, Rules: []string{}}
	for _, g := range chosen {
		kept.add(g)
	}
	if !f.dryRun {
		if err := keep(ctx, p.client, rules); err != nil {
			return fmt.Errorf("nothing is kept: %w", err)
		}
		for _, rule := range rules {
			kept.Rules = append(kept.Rules, rule.Name)
		}
	}
	if o.printer == nil && o.format != names {
		return p.printReservation(kept, chosen, len(rules), f, o)
	}
	return printList(p, o, "ReservationList", []*Reservation{kept},
		func(r *Reservation) string { return r.Team }, "", table{})
}

// check sets the names. It returns an error if the arguments, the team first, or the flags cannot be used.
func (f *reserveOptions) check(args []string) error {
	if len(args) == 0 {
		if f.dryRun || f.gpus != 0 || f.selector != "" {
			return errors.New("name the team or namespace: kubectl gpu reserve TEAM")
		}
		return nil
	}
	f.names = args[1:]
	problems := validation.IsDNS1123Label(args[0])
	switch {
	case len(problems) > 0:
		return fmt.Errorf("%q is no name of a team: %s", args[0], strings.Join(problems, "; "))
	case f.gpus < 0:
		return fmt.Errorf("--gpus %d: write a positive number", f.gpus)
	case f.gpus == 0 && len(f.names) == 0 && f.model == "" && f.selector == "":
		return errors.New("say which GPUs to keep: by names of nodes or GPUs, --model, --selector or --gpus")
	}
	return nil
}

// partitionsAsKinds is what reserve needs of slices: of partitions that may exist, not which these are.
func partitionsAsKinds() read.Devices {
	return read.Devices{Keep: func(_ *resourceapi.ResourceSlice, device string, consumes bool) (keep, identity bool) {
		return true, !consumes || !gpu.IsPart(device)
	}}
}

// choose returns the GPUs to keep: all that are selected, or the first --gpus that new claims could get, idle ones
// first.
func (f *reserveOptions) choose(ctx context.Context, all []*GPU) (chosen []*GPU, err error) {
	compiled := allocator.NewCache(1)
	for _, g := range all {
		accepted, err := f.accepts(ctx, compiled, g)
		if err != nil {
			return nil, err
		}
		if accepted && f.keeps(g) {
			chosen = append(chosen, g)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("nothing is kept: no GPU has these names and flags; kubectl gpu ls lists all")
	}
	if f.gpus == 0 {
		for _, g := range chosen {
			if slices.ContainsFunc(g.Taints, func(t Taint) bool { return t.Key == cluster.PreemptionTaint }) {
				return nil, fmt.Errorf("nothing is kept: %s is kept for a pod of higher priority, for a minute or so; "+
					"try again later", g.Ref())
			}
			if teams := g.keptFor(); len(teams) > 0 {
				return nil, fmt.Errorf("nothing is kept: %s is kept for %s already; %s ends what this command began",
					g.Ref(), teams[0], endOf(teams[0]))
			}
		}
		return chosen, nil
	}
	selected := len(chosen)
	chosen = slices.DeleteFunc(chosen, func(g *GPU) bool {
		return g.NodeProblem != "" || slices.ContainsFunc(g.Taints, Taint.prevents)
	})
	if len(chosen) < f.gpus {
		return nil, fmt.Errorf("nothing is kept: --gpus %d: of %s selected, %d can be kept; the others are kept "+
			"already, have another taint, or are on nodes that take no pods",
			f.gpus, count(selected, "GPU"), len(chosen))
	}
	slices.SortStableFunc(chosen, func(a, b *GPU) int {
		return cmp.Compare(min(len(a.Holders), 1), min(len(b.Holders), 1))
	})
	return chosen[:f.gpus], nil
}

// accepts reports whether the GPU meets the selector, if there is one.
func (f *reserveOptions) accepts(ctx context.Context, cache *cel.Cache, g *GPU) (bool, error) {
	if f.selector == "" {
		return true, nil
	}
	compiled := cache.GetOrCompile(f.selector)
	if compiled.Error != nil {
		return false, fmt.Errorf("--selector: %w", compiled.Error)
	}
	if g.device == nil { // only partitions are published
		return false, nil
	}
	ok, _, err := compiled.DeviceMatches(ctx, allocator.Device(g.Driver, g.device))
	if err != nil {
		return false, fmt.Errorf("--selector: %s: %w", g.Ref(), err)
	}
	return ok, nil
}

// reservation returns the rules that keep the GPUs: one for a node of which all GPUs are kept, else one for each
// device, which are the GPU and its partitions.
func reservation(team string, s *cluster.Snapshot, all, chosen []*GPU) ([]*resourceapi.DeviceTaintRule, error) {
	kept := map[cluster.PoolID]sets.Set[string]{} // names of GPUs
	for _, g := range chosen {
		kept[g.poolID()] = kept[g.poolID()].Union(sets.New(g.Name))
	}
	open := map[cluster.PoolID]bool{} // a GPU of it is not kept
	for _, g := range all {
		open[g.poolID()] = open[g.poolID()] || !kept[g.poolID()].Has(g.Name)
	}
	published := map[cluster.PoolID]int64{}
	current := cluster.Current(offer.All(s.Slices, s.TaintRules)) // also partitions that are published later
	for _, slice := range current {
		published[cluster.PoolOf(slice)]++
	}
	for _, slice := range current { // more GPUs of the pool may be published in a moment
		pool := cluster.PoolOf(slice)
		open[pool] = open[pool] || published[pool] < slice.Spec.Pool.ResourceSliceCount
	}
	prefix := fmt.Sprintf("kubectl-gpu-reserve-%s-%s", team, rand.String(5))
	var rules []*resourceapi.DeviceTaintRule
	whole := map[cluster.PoolID]bool{}
	for _, slice := range current {
		pool := cluster.PoolOf(slice)
		for _, d := range slice.Spec.Devices {
			selector := &resourceapi.DeviceTaintSelector{Driver: &pool.Driver, Pool: &pool.Pool}
			switch {
			case !kept[pool].Has(gpu.ParentName(d.Name)) || whole[pool]:
				continue
			case open[pool]:
				selector.Device = ptr.To(d.Name)
			default:
				whole[pool] = true
			}
			rules = append(rules, &resourceapi.DeviceTaintRule{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", prefix, len(rules)),
					Labels: map[string]string{cluster.ReservedTaint: team}},
				Spec: resourceapi.DeviceTaintRuleSpec{DeviceSelector: selector, Taint: resourceapi.DeviceTaint{
					Key: cluster.ReservedTaint, Value: team, Effect: resourceapi.DeviceTaintEffectNoSchedule}}})
		}
	}
	if len(rules) > maxRules {
		return nil, fmt.Errorf("nothing is kept: the %s have %d devices with their partitions, and at most %d are "+
			"kept at once; keep fewer, or all GPUs of a node, which needs one rule", count(len(chosen), "GPU"),
			len(rules), maxRules)
	}
	return rules, nil
}

// keep creates the rules. After an error it removes them.
func keep(ctx context.Context, client kubernetes.Interface, rules []*resourceapi.DeviceTaintRule) (err error) {
	written := &taintRules{client: client}
	defer func() {
		if err != nil {
			err = errors.Join(err, written.remove(ctx))
		}
	}()
	for _, rule := range rules {
		if err := written.create(ctx, rule); err != nil {
			return err
		}
	}
	now, err := client.ResourceV1().DeviceTaintRules().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, other := range now.Items { // of another run at the same time
		if team := cluster.KeptFor(other.Spec.Taint); team != "" && !slices.Contains(written.names, other.Name) &&
			slices.ContainsFunc(rules, func(own *resourceapi.DeviceTaintRule) bool { return overlap(own, &other) }) {
			return fmt.Errorf("some of the GPUs are kept for %s, by the DeviceTaintRule %s; %s ends what this command "+
				"began", team, other.Name, endOf(team))
		}
	}
	return nil
}

// overlap reports whether both rules may be for one device.
func overlap(a, b *resourceapi.DeviceTaintRule) bool {
	same := func(a, b *string) bool { return a == nil || b == nil || *a == *b }
	x, y := a.Spec.DeviceSelector, b.Spec.DeviceSelector
	return x != nil && y != nil && same(x.Driver, y.Driver) && same(x.Pool, y.Pool) && same(x.Device, y.Device)
}

// printReservation prints the GPUs, who holds them, and how claims get them.
func (p *plugin) printReservation(r *Reservation, chosen []*GPU, rules int, f reserveOptions, o output) error {
	t := table{header: []string{"NODE", "GPU", "MODEL", "HELD BY"}}
	for _, g := range chosen {
		t.add(g.place(), g.Name, cmp.Or(g.Model, none), holdersCell(g, o.shown()))
	}
	if err := p.printTable(t, o); err != nil {
		return err
	}
	gpus, written := count(len(chosen), "GPU"), count(rules, "DeviceTaintRule")
	if f.dryRun {
		fmt.Fprintf(p.Out, "It would keep %s for %s, by %s. Nothing was changed.\n", gpus, r.Team, written)
		return nil
	}
	fmt.Fprintf(p.Out, "Kept for %s: %s, by %s.\n", r.Team, gpus, written)
	if r.Held > 0 {
		fmt.Fprintf(p.Out, "Held now: %d of them, until the claims end that hold them.\n", r.Held)
	}
	fmt.Fprintf(p.Out, `Claims of %s get them with this, in requests[].exactly or requests[].firstAvailable[]:

tolerations:
- {key: %s, operator: Equal, value: %s, effect: NoSchedule}

Whoever may create claims can write it. Pods with extended resources, such as nvidia.com/gpu, cannot.
To end it: %s
`, r.Team, cluster.ReservedTaint, r.Team, endOf(r.Team))
	return nil
}

// errNoRules means that there are no DeviceTaintRules.
var errNoRules = errors.New("the API server has no DeviceTaintRules in resource.k8s.io/v1 (Kubernetes 1.37 or " +
	"newer), or you may not list them")

// taintRules are DeviceTaintRules that a run has created, or is to remove.
type taintRules struct {
	client kubernetes.Interface
	names  []string
}

// create creates a rule. It does not begin after Ctrl-C, and Ctrl-C does not cut it off.
func (r *taintRules) create(ctx context.Context, rule *resourceapi.DeviceTaintRule) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ruleTimeout)
	defer cancel()
	_, err := r.client.ResourceV1().DeviceTaintRules().Create(ctx, rule, metav1.CreateOptions{})
	// Without an answer, or after an error of the server, the rule may exist.
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) || status.Status().Code >= 500 {
		r.names = append(r.names, rule.Name)
	}
	return err
}

// remove removes the rules, also after Ctrl-C. The error names those that remain.
func (r *taintRules) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ruleTimeout)
	defer cancel()
	var all []error
	for _, name := range r.names {
		err := r.client.ResourceV1().DeviceTaintRules().Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			all = append(all, fmt.Errorf("remove the DeviceTaintRule %s, which keeps pods away from GPUs: %w", name,
				err))
		}
	}
	return errors.Join(all...)
}
