// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// clique is the GPUs of one NVLink fabric of several nodes.
type clique struct {
	name  string // cluster UUID and clique ID
	nodes []string
	gpus  int
	free  int // those that nobody holds and new pods can get
	known bool
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
			i, all = len(all), append(all, &clique{name: g.FabricDomain, known: true})
		}
		c := all[i]
		c.gpus++
		if g.Free() {
			c.free++
		}
		c.known = c.known && g.Memory.Used != nil
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
		free := unknown
		if c.known {
			free = strconv.Itoa(c.free)
		}
		t.add(c.name, strconv.Itoa(c.gpus), free, joined(c.nodes))
	}
	fmt.Fprintln(p.Out)
	return p.printTable(t, o)
}
