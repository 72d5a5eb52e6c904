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

// devicePlugin reads a configuration of NVIDIA's device plugin. It honours or refuses settings of sharing. It refuses
// or warns about other settings that change what containers get, and ignores those of the device plugin itself.
func (r *reader) devicePlugin(root *yaml.Node) []entry {
	f := r.fields("", root, "version", "flags", "resources", "sharing", "imex")
	if f["version"] != nil { // optional in the device plugin, too
		r.constant(root, f, "version", devicePluginVersion)
	}
	strategy := r.flags(f["flags"])
	if n := f["resources"]; n != nil && len(n.Content) > 0 {
		r.warning(n.Line, "resources", "ignored, as the device plugin does too: what GPUs are called is for device "+
			"classes to say")
	}
	r.imex(f["imex"])
	return r.partitioned(r.replication(f["sharing"]), strategy)
}

// flags warns about flags that change what containers get. It returns the value of migStrategy, nil if the file does
// not set it: the device plugin can also have it on its command line.
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

// migStrategies maps the device plugin's strategies. It only ever offers existing partitions.
var migStrategies = map[string]gpu.Partitions{
	"none": gpu.PartitionsNone, "single": gpu.PartitionsStatic, "mixed": gpu.PartitionsStatic,
}

// partitioned sets the partitions of the entries, and adds an entry for the remaining GPUs.
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
		r.warning(strategy.Line, path, "%s is taken as mixed: a partition is asked for as %s<profile> here, and %s "+
			"is a whole GPU",
			show(strategy), migPrefix, wholeGPU)
	}
	for i := range entries {
		entries[i].use.Partitions = partitions
	}
	if slices.ContainsFunc(entries, func(e entry) bool { return e.selector == nil }) {
		return entries // an entry is for all GPUs
	}
	return append(entries, entry{line: strategy.Line, path: path, use: gpu.SharingMode{Partitions: partitions}})
}

// imex refuses required IMEX channels, and warns about optional ones.
func (r *reader) imex(n *yaml.Node) {
	if n == nil || n.Tag == "!!null" {
		return
	}
	f := r.fields("imex", n, "channelIDs", "required")
	if r.boolean("imex.required", f["required"]) {
		r.problem(f["required"].Line, "imex.required", "IMEX channels are not offered by this driver: want false")
	} else if channels := f["channelIDs"]; channels != nil && len(channels.Content) > 0 {
		r.warning(channels.Line, "imex.channelIDs", "ignored: IMEX channels are not offered by this driver")
	}
}

// replication reads the sharing of GPUs.
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
		return r.replicated("sharing.timeSlicing", slicing, gpu.SharingMode{Sharing: gpu.Replicated,
			Isolation: gpu.IsolationNone})
	case mps != nil: // one per container is also the device plugin's default
		return r.replicated("sharing.mps", mps, gpu.SharingMode{Sharing: gpu.Replicated, Isolation: gpu.IsolationMPS,
			OnePerClaim: true})
	}
	return nil
}

// replicated reads one kind of sharing; use has its defaults.
func (r *reader) replicated(path string, n *yaml.Node, use gpu.SharingMode) []entry {
	accepted := []string{"renameByDefault", "failRequestsGreaterThanOne", "resources"}
	f := r.fields(path, n, accepted...)
	if f == nil {
		return nil
	}
	use.SharedOnly = r.boolean(path+".renameByDefault", f["renameByDefault"])
	if n := f["failRequestsGreaterThanOne"]; n != nil && n.Tag != "!!null" {
		use.OnePerClaim = r.boolean(path+".failRequestsGreaterThanOne", n)
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

// resource reads the replication of one resource.
func (r *reader) resource(path string, n *yaml.Node, use gpu.SharingMode) []entry {
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
		r.checkReplicas(f["replicas"].Line, path+".replicas", use)
	}
	if use.Replicas == 1 {
		use.Isolation = gpu.IsolationNone // a single user: the device plugin starts no MPS either
	}
	var entries []entry
	for _, s := range r.devices(path+".devices", f["devices"]) {
		entries = append(entries, entry{line: n.Line, path: path, selector: s, use: use})
	}
	return entries
}

// full completes the resource's name as the device plugin does.
func full(name string) string {
	if strings.HasPrefix(name, resourcePrefix) {
		return name
	}
	return resourcePrefix + name
}

// notOffered returns why a resource cannot be replicated.
func notOffered(name string) string {
	if strings.HasPrefix(name, migPrefix) {
		return "; a partition is for one claim here, which containers and pods can share"
	}
	return "; other resources of the device plugin do not exist here"
}

// renamed reports whether only requests for a shared GPU get a replica.
func (r *reader) renamed(path string, n *yaml.Node, byDefault bool) bool {
	switch {
	case n == nil || n.Tag == "!!null" || n.Value == "":
		return byDefault
	case full(n.Value) == sharedGPU:
		return true
	case full(n.Value) == wholeGPU && !byDefault:
		return false
	}
	r.problem(n.Line, path, "%s: want %s, the resource of the device class for shared GPUs; a name of your own "+
		"belongs into the class", show(n), sharedGPU)
	return byDefault
}

// devices reads the GPUs on which a resource is replicated.
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

// listed reads a list of indexes and UUIDs.
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
