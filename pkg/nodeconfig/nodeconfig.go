// SPDX-License-Identifier: Apache-2.0

// Package nodeconfig reads what the administrator of a node lets claims do with its GPUs: in the driver's own format, or in that of
// NVIDIA's device plugin.
package nodeconfig

import (
	"fmt"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Config says how each GPU of a node may be used. The zero value leaves all of them at their default.
type Config struct {
	// Warnings are what was understood and changes nothing here, each with its line and the reason.
	Warnings []string

	entries []entry // the first that selects a GPU decides
}

// entry is one use and the GPUs that it is for.
type entry struct {
	line     int
	path     string // "gpus[0]"
	selector selector
	use      gpu.Use
	// partitions is where the entry says which partitions there are; the zero value where it does not.
	partitions value
}

func (e entry) String() string { return fmt.Sprintf("%s of line %d", e.path, e.line) }

// Parse reads a configuration in either format. The error reports every problem, each with its line, its field and what is accepted.
func Parse(text []byte) (Config, error) {
	r := &reader{}
	entries := r.config(r.document(text))
	if len(r.problems) == 0 {
		r.reachable(entries)
	}
	if err := r.err(); err != nil {
		return Config{}, err
	}
	return Config{Warnings: r.warnings, entries: entries}, nil
}

// reachable notes the entries that an earlier one leaves no GPU to, whatever GPUs there are.
func (r *reader) reachable(entries []entry) {
	for i, later := range entries {
		if j := slices.IndexFunc(entries[:i], func(e entry) bool { return e.selector.covers(later.selector) }); j >= 0 {
			r.problem(later.line, later.path, "never decides: %s selects the same GPUs, and the first entry that selects a GPU decides", entries[j])
		}
	}
}

// For is how the GPU may be used.
func (c Config) For(d gpu.Device) gpu.Use {
	if i := c.ruling(d); i >= 0 {
		return c.entries[i].use
	}
	return gpu.Use{}
}

// ruling is the index of the entry that decides about the GPU, -1 when none does.
func (c Config) ruling(d gpu.Device) int {
	return slices.IndexFunc(c.entries, func(e entry) bool { return e.selector.matches(d) })
}

// Unmatched are the selections that have no effect on a node with these GPUs, each with its line. That is no mistake where nodes
// with other GPUs share the configuration.
func (c Config) Unmatched(devices []gpu.Device) []string {
	ruled := map[int][]gpu.Device{}
	for _, d := range devices {
		i := c.ruling(d)
		ruled[i] = append(ruled[i], d)
	}
	var out []string
	for i, e := range c.entries {
		first := slices.IndexFunc(devices, e.selector.matches)
		switch {
		case e.selector == nil: // what is left; nothing may be
		case first < 0:
			out = append(out, fmt.Sprintf("line %d: %s: selects no GPU of this node", e.line, e.path))
		case len(ruled[i]) == 0:
			out = append(out, fmt.Sprintf("line %d: %s: decides about no GPU of this node: those that it selects are ruled by earlier entries, the first by %s",
				e.line, e.path, c.entries[c.ruling(devices[first])]))
		default:
			out = append(out, e.selector.absent(devices)...)
		}
		if e.partitions.path != "" && len(ruled[i]) > 0 {
			out = append(out, e.unpartitionable(ruled[i])...)
		}
	}
	return out
}

// unpartitionable says why there will be no partitions of the GPUs that the entry decides about, where it asks for some. A GPU that
// can have none is not worth a word beside one that can.
func (e entry) unpartitionable(devices []gpu.Device) []string {
	if e.use.Partitions == gpu.PartitionsNone {
		return nil
	}
	if !slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.MIG.Capable }) {
		return []string{at(e.partitions.line, e.partitions.path, "no GPU of this node that it is for can be partitioned")}
	}
	var out []string
	for _, d := range devices {
		if e.use.Partitions == gpu.PartitionsDynamic && d.MIG.Capable && !d.MIG.Enabled && !d.MIG.Switchable {
			out = append(out, at(e.partitions.line, e.partitions.path,
				"%s has MIG mode off, and only a reset can change that: nvidia-smi -i %d -mig 1", d.Name, d.Index))
		}
	}
	return out
}
