// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

const (
	devicePluginVersion = "v1"
	resourcePrefix      = "nvidia.com/"
	wholeGPU            = resourcePrefix + "gpu"
	sharedGPU           = wholeGPU + ".shared"
	migPrefix           = resourcePrefix + "mig-"
)

// devicePlugin reads a configuration of NVIDIA's device plugin. What it says of sharing is honoured or refused; of the rest, what
// would change what containers get is refused or warned of, and what is about the device plugin itself does not matter.
func (r *reader) devicePlugin(root *yaml.Node) []entry {
	f := r.fields("", root, "version", "flags", "resources", "sharing", "imex")
	if f["version"] != nil { // the device plugin does without, too
		r.constant(root, f, "version", devicePluginVersion)
	}
	strategy := r.flags(f["flags"])
	if n := f["resources"]; n != nil && len(n.Content) > 0 {
		r.warning(n.Line, "resources", "ignored, as the device plugin does too: what GPUs are called is for device classes to say")
	}
	r.imex(f["imex"])
	return r.partitioned(r.replication(f["sharing"]), strategy)
}

// flags warns of those that say what containers get. It returns the one that says which partitions there are, nil where the file
// leaves that open: the device plugin can have it from its command line, too.
func (r *reader) flags(n *yaml.Node) (migStrategy *yaml.Node) {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i < len(n.Content); i += 2 {
		name, v := n.Content[i].Value, resolve(n.Content[i+1])
		switch {
		case name == "migStrategy" && v.Tag != "!!null" && (v.Value != "" || v.Kind != yaml.ScalarNode):
			migStrategy = v
		case (name == "gdsEnabled" || name == "mofedEnabled") && v.Value == "true":
			r.warning(v.Line, "flags."+name, "ignored: containers do not get its device nodes from this driver")
		}
	}
	return migStrategy
}

// migStrategies are what the device plugin's ways to treat partitions mean here. It only ever gives those that somebody has made.
var migStrategies = map[string]gpu.Partitions{
	"none": gpu.PartitionsNone, "single": gpu.PartitionsStatic, "mixed": gpu.PartitionsStatic,
}

// partitioned adds to the entries which partitions there are, and one for the GPUs that they leave.
func (r *reader) partitioned(entries []entry, strategy *yaml.Node) []entry {
	if strategy == nil {
		return entries
	}
	const path = "flags.migStrategy"
	partitions, ok := migStrategies[strategy.Value]
	if !ok {
		r.problem(strategy.Line, path, "%s: want none, single or mixed", show(strategy))
		return entries
	}
	if strategy.Value == "single" {
		r.warning(strategy.Line, path, "%s is taken as mixed: a partition is asked for as %s<profile> here, and %s is a whole GPU",
			show(strategy), migPrefix, wholeGPU)
	}
	for i := range entries {
		entries[i].use.Partitions = partitions
	}
	if slices.ContainsFunc(entries, func(e entry) bool { return e.selector == nil }) {
		return entries // there is no GPU left
	}
	return append(entries, entry{line: strategy.Line, path: path, use: gpu.Use{Partitions: partitions}})
}

// imex refuses channels that pods cannot do without.
func (r *reader) imex(n *yaml.Node) {
	if n == nil || n.Tag == "!!null" {
		return
	}
	f := r.fields("imex", n, "channelIDs", "required")
	if r.yes("imex.required", f["required"]) {
		r.problem(f["required"].Line, "imex.required", "IMEX channels are not offered by this driver: want false")
	} else if channels := f["channelIDs"]; channels != nil && len(channels.Content) > 0 {
		r.warning(channels.Line, "imex.channelIDs", "ignored: IMEX channels are not offered by this driver")
	}
}

// replication reads the part that says how GPUs are shared.
func (r *reader) replication(n *yaml.Node) []entry {
	if n == nil || n.Tag == "!!null" {
		return nil
	}
	f := r.fields("sharing", n, "timeSlicing", "mps")
	slicing, mps := f["timeSlicing"], f["mps"]
	switch {
	case slicing != nil && mps != nil:
		r.problem(mps.Line, "sharing.mps", "sharing.timeSlicing is there too: want one of them")
		fallthrough
	case slicing != nil:
		return r.replicated("sharing.timeSlicing", slicing, gpu.Use{Sharing: gpu.Replicated, Isolation: gpu.IsolationNone})
	case mps != nil: // the device plugin allows one per container by default, too
		return r.replicated("sharing.mps", mps, gpu.Use{Sharing: gpu.Replicated, Isolation: gpu.IsolationMPS, OnePerClaim: true})
	}
	return nil
}

// replicated reads one way of sharing; use is what it means by default.
func (r *reader) replicated(path string, n *yaml.Node, use gpu.Use) []entry {
	accepted := []string{"renameByDefault", "failRequestsGreaterThanOne", "resources"}
	f := r.fields(path, n, accepted...)
	if f == nil {
		return nil
	}
	use.SharedOnly = r.yes(path+".renameByDefault", f["renameByDefault"])
	if n := f["failRequestsGreaterThanOne"]; n != nil && n.Tag != "!!null" {
		use.OnePerClaim = r.yes(path+".failRequestsGreaterThanOne", n)
	}
	resources := f["resources"]
	if resources == nil || resources.Kind == yaml.SequenceNode && len(resources.Content) == 0 {
		r.problem(n.Line, path+".resources", "missing: want a list such as [{name: %s, replicas: 4}]", wholeGPU)
		return nil
	}
	var entries []entry
	r.list(path+".resources", resources, func(path string, n *yaml.Node) {
		entries = append(entries, r.resource(path, n, use)...)
	})
	return entries
}

// resource reads how one resource is replicated.
func (r *reader) resource(path string, n *yaml.Node, use gpu.Use) []entry {
	f := r.fields(path, n, "name", "rename", "devices", "replicas")
	if f == nil {
		return nil
	}
	if f["name"] == nil {
		r.problem(n.Line, path+".name", "missing: want %s", wholeGPU)
	} else if got := full(f["name"].Value); got != wholeGPU {
		r.problem(f["name"].Line, path+".name", "%s: want %s%s", show(f["name"]), wholeGPU, notOffered(got))
	}
	use.SharedOnly = r.renamed(path+".rename", f["rename"], use.SharedOnly)
	use.Replicas = 1
	if f["replicas"] == nil {
		r.problem(n.Line, path+".replicas", "missing: want a whole number of at least 1")
	} else if replicas, ok := r.number(path+".replicas", f["replicas"], 1, maxReplicas[gpu.IsolationNone]); ok {
		use.Replicas = replicas
		r.enforceable(f["replicas"].Line, path+".replicas", use)
	}
	if use.Replicas == 1 {
		use.Isolation = gpu.IsolationNone // one user has all of it: the device plugin starts no MPS either
	}
	var entries []entry
	for _, s := range r.devices(path+".devices", f["devices"]) {
		entries = append(entries, entry{line: n.Line, path: path, selector: s, use: use})
	}
	return entries
}

// full is the resource's name as the device plugin completes it.
func full(name string) string {
	if strings.HasPrefix(name, resourcePrefix) {
		return name
	}
	return resourcePrefix + name
}

// notOffered says why a resource cannot be replicated.
func notOffered(name string) string {
	if strings.HasPrefix(name, migPrefix) {
		return "; a partition is for one claim here, which containers and pods can share"
	}
	return "; other resources of the device plugin do not exist here"
}

// renamed says whether only those get a replica who ask for a shared GPU.
func (r *reader) renamed(path string, n *yaml.Node, byDefault bool) bool {
	switch {
	case n == nil || n.Tag == "!!null" || n.Value == "":
		return byDefault
	case full(n.Value) == sharedGPU:
		return true
	case full(n.Value) == wholeGPU && !byDefault:
		return false
	}
	r.problem(n.Line, path, "%s: want %s, the resource of the device class for shared GPUs; a name of your own belongs into the class", show(n), sharedGPU)
	return byDefault
}

// devices reads which GPUs a resource is replicated on.
func (r *reader) devices(path string, n *yaml.Node) []selector {
	switch {
	case n == nil || n.Kind == yaml.ScalarNode && n.Value == "all":
		return []selector{nil}
	case n.Kind == yaml.SequenceNode && len(n.Content) > 0:
		return r.listed(path, n)
	case n.Kind != yaml.ScalarNode || n.Tag != "!!int":
		r.problem(n.Line, path, "%s: want all, a number of GPUs, or a list of indexes and UUIDs", show(n))
		return nil
	}
	count, _ := r.number(path, n, 1, maxIndex)
	var indexes []value
	for i := range count {
		indexes = append(indexes, value{n.Line, path, strconv.Itoa(i)})
	}
	return []selector{{{"index", indexes}}}
}

// listed reads a list in which indexes and UUIDs may be mixed.
func (r *reader) listed(path string, n *yaml.Node) []selector {
	found := map[string][]value{}
	r.list(path, n, func(path string, n *yaml.Node) {
		attribute := "index"
		if _, err := strconv.Atoi(n.Value); err != nil {
			attribute = "uuid"
		}
		found[attribute] = append(found[attribute], r.value(path, n, attribute)...)
	})
	var selectors []selector
	for _, attribute := range []string{"index", "uuid"} {
		if values := found[attribute]; len(values) > 0 {
			selectors = append(selectors, selector{{attribute, values}})
		}
	}
	return selectors
}
