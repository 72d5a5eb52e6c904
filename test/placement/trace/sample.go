// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"slices"
)

// Scale returns the trace with these parts of each node's CPU and memory.
func (t Trace) Scale(cpu, memory float64) Trace {
	t.Nodes = slices.Clone(t.Nodes)
	for i := range t.Nodes {
		n := &t.Nodes[i]
		n.CPU, n.Memory = int64(float64(n.CPU)*cpu), int64(float64(n.Memory)*memory)
	}
	return t
}

// Sample returns the trace with count of its nodes, evenly spaced in the order of model, number of GPUs, CPU and
// memory: all kinds of nodes keep their proportions. A count of 0, or of all, keeps all nodes.
func (t Trace) Sample(count int) Trace {
	if count <= 0 || count >= len(t.Nodes) {
		return t
	}
	sorted := slices.SortedStableFunc(slices.Values(t.Nodes), func(a, b Node) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(a.CPU, b.CPU),
			cmp.Compare(a.Memory, b.Memory))
	})
	t.Nodes = nil
	for i := range count {
		t.Nodes = append(t.Nodes, sorted[i*len(sorted)/count])
	}
	return t
}
