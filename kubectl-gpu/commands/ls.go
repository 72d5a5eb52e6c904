// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/nearest"
)

// filter selects GPUs.
type filter struct {
	driver, model, namespace string
	names                    []string // of nodes and GPUs
	stranded                 bool     // only GPUs that are idle and that no pod can use
}

func (f *filter) addDriver(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.driver, "driver", "", "Only devices of this DRA driver. Default: those of all drivers "+
		"with \"gpu\" in their name, and of those whose devices have the attribute type gpu or mig.")
}

func (f *filter) addModel(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.model, "model", "", "Only GPUs whose model contains this text, in any case.")
}

// keeps reports whether the GPU is selected.
func (f *filter) keeps(g *GPU) bool {
	return (len(f.names) == 0 || slices.ContainsFunc(f.names, g.named)) &&
		f.ofModel(g) && (!f.stranded || g.Stranded != "") &&
		(f.namespace == "" || slices.ContainsFunc(g.Holders, func(h Holder) bool { return h.Namespace == f.namespace }))
}

// nothing says that no GPU is selected.
func (f *filter) nothing() string {
	if f.stranded {
		return "No GPU is stranded: what is idle fits a pod like those that have GPUs."
	}
	if len(f.names) == 0 && f.model == "" && f.namespace == "" {
		return "No GPUs found."
	}
	return "No GPUs found with these names and flags; kubectl gpu ls -A lists all."
}

// unknown returns an error if the filter names a node, a GPU or a model that there is not: a misspelt name is not to
// look like one without GPUs.
func (f *filter) unknown(all []*GPU, s *cluster.Snapshot) error {
	var places, models, nodes []string
	for _, g := range all {
		places, models = append(places, g.place(), g.Ref()), append(models, g.Model)
	}
	for _, n := range s.Nodes {
		nodes = append(nodes, n.Name)
	}
	for _, name := range f.names {
		switch {
		case slices.ContainsFunc(all, func(g *GPU) bool { return g.named(name) }):
		case slices.Contains(nodes, name):
			return fmt.Errorf("node %s has no GPUs that a DRA driver publishes", name)
		default:
			return fmt.Errorf("there is no node or GPU %q%s", name, nearest.Hint(name, slices.Concat(places, nodes)))
		}
	}
	if f.model != "" && len(all) > 0 && !slices.ContainsFunc(all, func(g *GPU) bool { return f.ofModel(g) }) {
		slices.Sort(models)
		return fmt.Errorf("no GPU is of a model with %q in its name; the models are %s", f.model,
			joined(slices.Compact(models)))
	}
	return nil
}

// ofModel reports whether the model of the GPU contains that of the filter.
func (f *filter) ofModel(g *GPU) bool {
	return strings.Contains(strings.ToLower(g.Model), strings.ToLower(f.model))
}

// named reports whether the name is that of the GPU, or of its node.
func (g *GPU) named(name string) bool {
	return name != "" && (name == g.place() || name == g.Ref() || name == g.UUID || name == g.Name)
}

// gpus reads the GPUs. Without slices it returns an error. What else it could not read is in the snapshot.
func (p *plugin) gpus(ctx context.Context, f filter, more ...string) ([]*GPU, *cluster.Snapshot, error) {
	if f.stranded {
		more = append(more, cluster.Pods)
	}
	s, err := p.read(ctx, append(more, cluster.Slices, cluster.Claims, cluster.Nodes)...)
	if err != nil {
		return nil, nil, err
	}
	if s.Unread[cluster.Slices] != nil {
		return nil, nil, s.Err()
	}
	all, err := selected(s, filter{driver: f.driver})
	if err == nil {
		err = errors.Join(f.unknown(all, s), p.unknownNamespace(ctx, f.namespace))
	}
	if f.stranded && err == nil {
		err = strand(s, all)
	}
	all = slices.DeleteFunc(all, func(g *GPU) bool { return !f.keeps(g) })
	for _, warning := range incomplete(s.Slices) {
		fmt.Fprintln(p.ErrOut, "Warning:", warning)
	}
	return all, s, err
}

// unknownNamespace returns an error if there is no such namespace. Without the right to read it, there may be.
func (p *plugin) unknownNamespace(ctx context.Context, namespace string) error {
	if namespace == "" {
		return nil
	}
	client, err := p.client()
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no namespace %q", namespace)
	}
	return nil
}

// selected returns the GPUs of the snapshot that the filter keeps.
func selected(s *cluster.Snapshot, f filter) ([]*GPU, error) {
	drivers := driversOf(s.Slices)
	if f.driver != "" {
		drivers = []string{f.driver}
		if len(current(s.Slices, f.driver)) == 0 {
			return nil, fmt.Errorf("no ResourceSlice is of the driver %q; the drivers of the cluster are: %s", f.driver,
				joined(publishers(s)))
		}
	}
	return slices.DeleteFunc(gpusOf(s, drivers), func(g *GPU) bool { return !f.keeps(g) }), nil
}

// publishers returns the names of all drivers that publish slices.
func publishers(s *cluster.Snapshot) []string {
	var all []string
	for _, slice := range s.Slices {
		all = append(all, slice.Spec.Driver)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func lsCommand(p *plugin) *cobra.Command {
	var f filter
	var o output
	var allNamespaces bool
	cmd := &cobra.Command{
		Use:   "ls [NODE|GPU...]",
		Short: "List the GPUs of the cluster with their allocated memory and cores, taints, and who holds them.",
		Long: "List the GPUs of the cluster with their sharing mode, allocated memory and cores, partitions, taints, " +
			"and the claims that hold them. A second table has the cliques of NVLink fabrics with several nodes, if " +
			"there are any. With --namespace, only GPUs that claims of this namespace hold. A GPU is named " +
			"NODE/DEVICE, by its device name, or by its UUID.",
		Example: "  kubectl gpu ls\n  kubectl gpu ls node-1 --model h100\n  kubectl gpu ls -n team-a -o wide",
		Aliases: []string{"list"},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.names = args
			namespace, explicit, err := p.namespace()
			if err != nil {
				return err
			}
			if explicit && !allNamespaces {
				f.namespace = namespace
			}
			return p.ls(cmd.Context(), f, o)
		},
		ValidArgsFunction: func(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
			return p.complete(cmd.Context(), given, (*GPU).place)
		},
	}
	cmd.Flags().BoolVarP(&allNamespaces, "all-namespaces", "A", false,
		"List the GPUs that claims of any namespace hold, and free ones. This is the default without --namespace.")
	cmd.Flags().BoolVar(&f.stranded, "stranded", false, "Only GPUs that are idle, in part or as a whole, and fit no "+
		"pod like those that have GPUs, with the reason. It reads all pods.")
	f.addDriver(cmd)
	f.addModel(cmd)
	o.addFlags(cmd, wide, names)
	return cmd
}

func (p *plugin) ls(ctx context.Context, f filter, o output) error {
	printer, err := o.printer()
	if err != nil {
		return err
	}
	all, s, err := p.gpus(ctx, f)
	if err != nil {
		return err
	}
	err = printList(p, printer, o, "GPUList", all, (*GPU).Ref, f.nothing(), gpuTable(all, f, o))
	return errors.Join(err, p.printCliques(cliquesOf(all), o), s.Err())
}

// gpuTable returns a row for each GPU.
func gpuTable(all []*GPU, f filter, o output) table {
	t := table{header: []string{"NODE", "GPU", "MODEL", "SHARING", "MEMORY", "CORES", "PARTITIONS", "TAINTS",
		"HELD BY"}, optional: []string{"SHARING", "PARTITIONS", "CORES"}}
	holders := shownHolders
	if o.format == wide {
		holders = math.MaxInt
		t.header = append(t.header, "COMPUTE", "UUID", "DRIVER")
	}
	if f.stranded {
		t.header = append(t.header, "STRANDED")
	}
	for _, g := range all {
		cells := []string{g.place(), g.Name, orNone(g.Model), sharingCell(g), memoryCell(g.Memory), coresCell(g.Cores),
			joined(partitionCells(g.Partitions)), joined(taintCells(g)), holdersCell(g, holders)}
		if o.format == wide {
			cells = append(cells, orNone(g.ComputeCapability), orNone(g.UUID), g.Driver)
		}
		if f.stranded {
			cells = append(cells, g.Stranded)
		}
		bad := g.NodeProblem != "" || slices.ContainsFunc(g.Taints, Taint.sick)
		t.rows = append(t.rows, row{cells, bad})
	}
	return t
}

// sharingCell returns how claims share the GPU: a replicated one with the number of its replicas, and one over the
// network with the node of its server.
func sharingCell(g *GPU) string {
	if g.VMOnly {
		return "vm only"
	}
	if g.Server != "" {
		return "remote: " + g.Server
	}
	if g.Replicas > 0 {
		return fmt.Sprintf("%s (%d)", g.Sharing, g.Replicas)
	}
	return orNone(g.Sharing)
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

// unknown is printed for what the user may not read.
const unknown = "?"

func memoryCell(a Amount) string {
	if a.Used == nil {
		return unknown + "/" + size(a.Total)
	}
	return bar(a) + " " + size(*a.Used) + "/" + size(a.Total)
}

func coresCell(a Amount) string {
	if a.Used == nil {
		return unknown
	}
	return fmt.Sprintf("%s %d%%", bar(a), *a.Used)
}

// partitionCells counts partitions by profile.
func partitionCells(all []Partition) []string {
	var profiles []string
	total, free := map[string]int{}, map[string]int{}
	for _, p := range all {
		if total[p.Profile] == 0 {
			profiles = append(profiles, p.Profile)
		}
		total[p.Profile]++
		if p.Free {
			free[p.Profile]++
		}
	}
	slices.Sort(profiles)
	var cells []string
	for _, p := range profiles {
		cell := fmt.Sprintf("%dx%s", total[p], p)
		if free[p] > 0 {
			cell += fmt.Sprintf(" (%d free)", free[p])
		}
		cells = append(cells, cell)
	}
	return cells
}

// taintCells returns the taints of the GPU, who it is kept for, and what is wrong with its node.
func taintCells(g *GPU) []string {
	var cells []string
	if g.NodeProblem != "" {
		cells = append(cells, "node "+g.NodeProblem)
	}
	for _, t := range g.Taints {
		if team := t.keptFor(); team != "" {
			cells = append(cells, "kept for "+team)
		} else {
			cells = append(cells, t.String())
		}
	}
	return cells
}

// shownHolders is how many holders a cell has, unless the format is wide.
const shownHolders = 3

// holdersCell names at most that many holders.
func holdersCell(g *GPU, most int) string {
	var cells []string
	for i, h := range g.Holders {
		if i == most {
			cells = append(cells, fmt.Sprintf("and %d more", len(g.Holders)-i))
			break
		}
		cells = append(cells, h.String())
	}
	if len(cells) == 0 && g.Memory.Used == nil {
		return unknown
	}
	return joined(cells)
}

// String returns the claim, what it holds, and how long it has not used that.
func (h Holder) String() string {
	if h.IdleSince != nil {
		return h.held() + " idle for " + age(h.IdleSince)
	}
	return h.held()
}

// held returns the claim and what it holds.
func (h Holder) held() string {
	text := h.Namespace + "/" + h.Claim
	switch {
	case h.VM:
		return text + " (vm)"
	case h.Whole && h.Asked != "":
		return fmt.Sprintf("%s (all: asked for %s, and the GPU has no shares)", text, h.Asked)
	case h.Whole:
		return text
	case h.Profile != "":
		return text + " (" + h.Profile + ")"
	case h.Cores > 0:
		return fmt.Sprintf("%s (%s, %d%%)", text, size(h.Memory), h.Cores)
	}
	return text + " (" + size(h.Memory) + ")"
}
