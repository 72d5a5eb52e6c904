// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

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

func (f *filter) addModel(p *plugin, cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.model, "model", "", "Only GPUs whose model contains this text, in any case.")
	completeFlag(cmd, "model", p.complete(p.namesOf(func(g *GPU) string { return g.Model })))
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
	s := p.read(ctx, append(more, cluster.Slices, cluster.Claims, cluster.Nodes)...)
	all, err := f.candidates(s)
	if err == nil || all != nil {
		err = errors.Join(err, p.unknownNamespace(ctx, f.namespace))
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

// unknownNamespace returns an error if there is no such namespace. Without the right to read it, there may be. An empty
// one means all: the client refuses to get that, which is another error.
func (p *plugin) unknownNamespace(ctx context.Context, namespace string) error {
	if _, err := p.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no namespace %q", namespace)
	}
	return nil
}

// candidates returns the GPUs of the filter's driver. With an error beside them, the filter names what there is not.
func (f *filter) candidates(s *cluster.Snapshot) ([]*GPU, error) {
	if s.Unread[cluster.Slices] != nil {
		return nil, s.Err()
	}
	drivers, publishers := driversOf(s.Slices), sets.New[string]()
	for _, slice := range s.Slices {
		publishers.Insert(slice.Spec.Driver)
	}
	if f.driver != "" {
		drivers = []string{f.driver}
		if !publishers.Has(f.driver) {
			return nil, fmt.Errorf("no ResourceSlice is of the driver %q; the drivers of the cluster are: %s", f.driver,
				joined(sets.List(publishers)))
		}
	}
	all := gpusOf(s, drivers)
	return all, f.unknown(all, s)
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
			if p.explicit && !allNamespaces {
				f.namespace = p.namespace
			}
			return p.ls(cmd.Context(), f, o)
		},
		ValidArgsFunction: p.complete(p.namesOf((*GPU).place)),
	}
	cmd.Flags().BoolVarP(&allNamespaces, "all-namespaces", "A", false,
		"List the GPUs that claims of any namespace hold, and free ones. This is the default without --namespace.")
	cmd.Flags().BoolVar(&f.stranded, "stranded", false, "Only GPUs that are idle, in part or as a whole, and fit no "+
		"pod like those that have GPUs, with the reason. It reads all pods.")
	f.addDriver(cmd)
	f.addModel(p, cmd)
	o.addFlags(p, cmd, wide, names)
	return cmd
}

func (p *plugin) ls(ctx context.Context, f filter, o output) error {
	all, s, err := p.gpus(ctx, f)
	if err != nil {
		return err
	}
	err = printList(p, o, "GPUList", all, (*GPU).Ref, f.nothing(), gpuTable(all, f, o))
	return errors.Join(err, p.printCliques(cliquesOf(all), o), s.Err())
}

func gpuTable(all []*GPU, f filter, o output) table {
	t := table{header: []string{"NODE", "GPU", "MODEL", "SHARING", "MEMORY", "CORES", "PARTITIONS", "TAINTS",
		"HELD BY", "COMPUTE", "UUID", "DRIVER", "STRANDED"}, wide: []string{"COMPUTE", "UUID", "DRIVER"},
		optional: []string{"SHARING", "PARTITIONS", "CORES"}}
	for _, g := range all {
		cells := []string{g.place(), g.Name, cmp.Or(g.Model, none), sharingCell(g), memoryCell(g.Memory),
			coresCell(g.Cores), joined(partitionCells(g.Partitions)), joined(taintCells(g)), holdersCell(g, o.shown()),
			cmp.Or(g.ComputeCapability, none), cmp.Or(g.UUID, none), g.Driver, g.Stranded}
		bad := g.NodeProblem != "" || slices.ContainsFunc(g.Taints, Taint.sick)
		t.rows = append(t.rows, row{cells, bad})
	}
	if !f.stranded {
		t.drop("STRANDED")
	}
	return t
}

// sharingCell returns how claims share the GPU: a replicated one with the number of its replicas, and one over the
// network with the node of its server.
func sharingCell(g *GPU) string {
	switch {
	case g.VMOnly:
		return "vm only"
	case g.Server != "":
		return "remote: " + g.Server
	case g.Replicas > 0:
		return fmt.Sprintf("%s (%d)", g.Sharing, g.Replicas)
	}
	return cmp.Or(g.Sharing, none)
}

// unknown is printed for what the user may not read.
const unknown = "?"

// known returns the text of a number, or that it is not known.
func known(n *int64, text func(int64) string) string {
	if n == nil {
		return unknown
	}
	return text(*n)
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

func inPercent(n int64) string { return fmt.Sprintf("%d%%", n) }

func memoryCell(a Amount) string {
	return strings.TrimSpace(bar(a) + " " + known(a.Used, size) + "/" + size(a.Total))
}

func coresCell(a Amount) string { return strings.TrimSpace(bar(a) + " " + known(a.Used, inPercent)) }

// partitionCells counts partitions by profile.
func partitionCells(all []Partition) []string {
	total, free := map[string]int{}, map[string]int{}
	for _, p := range all {
		total[p.Profile]++
		if p.Free {
			free[p.Profile]++
		}
	}
	var cells []string
	for _, p := range slices.Sorted(maps.Keys(total)) {
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

// holdersCell names at most that many holders.
func holdersCell(g *GPU, most int) string {
	var cells []string
	for _, h := range g.Holders {
		cells = append(cells, h.String())
	}
	if len(cells) == 0 && g.Memory.Used == nil {
		return unknown
	}
	return joined(few(cells, most))
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

// clique is the GPUs of one NVLink fabric of several nodes.
type clique struct {
	name  string // cluster UUID and clique ID
	nodes []string
	Tally
}

// cliquesOf returns the cliques of the GPUs, sorted by name. A GPU in no such fabric has its own UUID as the domain.
func cliquesOf(gpus []*GPU) []*clique {
	var all []*clique
	for _, g := range gpus {
		if g.FabricDomain == "" {
			continue
		}
		i := slices.IndexFunc(all, func(c *clique) bool { return c.name == g.FabricDomain })
		if i < 0 {
			i, all = len(all), append(all, &clique{name: g.FabricDomain})
		}
		c := all[i]
		c.count(g)
		if !slices.Contains(c.nodes, g.place()) {
			c.nodes = append(c.nodes, g.place())
		}
	}
	slices.SortFunc(all, func(a, b *clique) int { return cmp.Compare(a.name, b.name) })
	return all
}

// printCliques prints a table of the cliques below that of the GPUs, and nothing without any.
func (p *plugin) printCliques(all []*clique, o output) error {
	if len(all) == 0 || o.noHeaders || o.format != "" && o.format != wide {
		return nil
	}
	t := table{header: []string{"CLIQUE", "GPUS", "FREE", "NODES"}}
	for _, c := range all {
		t.add(c.name, strconv.Itoa(c.GPUs), known(c.Free, decimal), joined(c.nodes))
	}
	fmt.Fprintln(p.Out)
	return p.printTable(t, o)
}
