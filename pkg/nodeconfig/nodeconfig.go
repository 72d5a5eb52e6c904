// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"fmt"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
)

// Config says how each GPU of a node may be used. The zero value leaves all of them at their default.
type Config struct {
	// Warnings list valid settings without effect, each with its line and the reason.
	Warnings []string

	entries []entry // the first that selects a GPU decides
}

// entry is one use, one policy, and the GPUs that they are for.
type entry struct {
	line     int
	path     string // "gpus[0]"
	selector selector
	use      gpu.SharingMode
	health   health.Policy
	// partitions is the entry's field for partitions; zero if not set.
	partitions value
}

func (e entry) String() string { return fmt.Sprintf("%s of line %d", e.path, e.line) }

// Parse reads a configuration in either format. The error reports every problem, each with its line, its field and what
// is accepted.
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

// reachable reports entries that select only GPUs of an earlier entry.
func (r *reader) reachable(entries []entry) {
	for i, later := range entries {
		if j := slices.IndexFunc(entries[:i], func(e entry) bool { return e.selector.covers(later.selector) }); j >= 0 {
			r.problem(later.line, later.path, "never decides: %s selects the same GPUs, and the first entry that "+
				"selects a GPU decides", entries[j])
		}
	}
}

// For returns how the GPU may be used.
func (c Config) For(d gpu.Device) gpu.SharingMode {
	if i := c.entryFor(d); i >= 0 {
		return c.entries[i].use
	}
	return gpu.SharingMode{}
}

// Health returns what follows from errors of the GPU. The entry that decides is the one that For takes.
func (c Config) Health(d gpu.Device) health.Policy {
	if i := c.entryFor(d); i >= 0 {
		return c.entries[i].health
	}
	return health.Policy{}
}

// entryFor returns the index of the entry that applies to the GPU, -1 if none does.
func (c Config) entryFor(d gpu.Device) int {
	return slices.IndexFunc(c.entries, func(e entry) bool { return e.selector.matches(d) })
}

// Unmatched returns the selections without effect on a node with these GPUs, each with its line. They are no errors,
// because nodes with other GPUs may share the configuration.
func (c Config) Unmatched(devices []gpu.Device) []string {
	assigned := map[int][]gpu.Device{}
	for _, d := range devices {
		i := c.entryFor(d)
		assigned[i] = append(assigned[i], d)
	}
	var out []string
	for i, e := range c.entries {
		first := slices.IndexFunc(devices, e.selector.matches)
		switch {
		case e.selector == nil: // what is left; nothing may be
		case first < 0:
			out = append(out, fmt.Sprintf("line %d: %s: selects no GPU of this node", e.line, e.path))
		case len(assigned[i]) == 0:
			out = append(out, fmt.Sprintf("line %d: %s: decides about no GPU of this node: those that it selects are "+
				"ruled by earlier entries, the first by %s",
				e.line, e.path, c.entries[c.entryFor(devices[first])]))
		default:
			out = append(out, e.selector.absent(devices)...)
		}
		if e.partitions.path != "" && len(assigned[i]) > 0 {
			out = append(out, e.unpartitionable(assigned[i])...)
		}
		out = append(out, e.unlimitable(assigned[i])...)
	}
	return out
}

// unlimitable says which of the entry's GPUs have no shares, or only counted ones, because nothing can limit them.
func (e entry) unlimitable(devices []gpu.Device) []string {
	var out []string
	for _, d := range devices {
		why := e.use.Unenforceable(d)
		switch is := e.use.EnforceableOn(d); {
		case is == e.use:
		case is.Sharing == gpu.Exclusive:
			out = append(out, at(e.line, e.path, "%s (%s) is exclusive, because %s: isolation: none counts its shares",
				d.Name, d.Product.Name, why))
		default:
			out = append(out, at(e.line, e.path, "%s (%s): its replicas have isolation none, because %s", d.Name,
				d.Product.Name, why))
		}
	}
	return out
}

// unpartitionable says why the entry's GPUs will have no partitions although it asks for them. It ignores GPUs without
// MIG if another GPU has it.
func (e entry) unpartitionable(devices []gpu.Device) []string {
	if e.use.Partitions == gpu.PartitionsNone {
		return nil
	}
	if !slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.MIG.Capable }) {
		return []string{at(e.partitions.line, e.partitions.path,
			"no GPU of this node that it is for can be partitioned")}
	}
	var out []string
	makes := e.use.Partitions == gpu.PartitionsDynamic || e.use.Partitions == gpu.PartitionsOnDemand
	for _, d := range devices {
		if makes && d.MIG.Capable && !d.MIG.Enabled && !d.MIG.Switchable {
			out = append(out, at(e.partitions.line, e.partitions.path,
				"%s has MIG mode off, and only a reset can change that: nvidia-smi -i %s -mig 1", d.Name, d.UUID))
		}
	}
	return out
}
