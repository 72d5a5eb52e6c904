// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"path"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

const (
	apiVersion = "resource.nvidia.com/v1beta1"
	kind       = "NodeConfig"
)

// maxReplicas limits the replicas of a GPU: each is a client of its MPS server, and a hook or a cgroup enforces whole
// percents. Without isolation, the limit only catches typing errors.
var maxReplicas = map[gpu.Isolation]int{gpu.IsolationMPS: gpu.MaxMPSClients, gpu.IsolationHook: 100,
	gpu.IsolationCgroup: 100, gpu.IsolationNone: 1024}

// maxIndex is above the number of GPUs of any machine.
const maxIndex = 1023

// config reads the root of either format.
func (r *reader) config(root *yaml.Node) []entry {
	switch {
	case root == nil:
		return nil
	case has(root, "apiVersion", "kind", "gpus"):
		return r.nodeConfig(root)
	case has(root, "version", "flags", "resources", "sharing", "imex"):
		return r.devicePlugin(root)
	}
	r.problem(root.Line, "", "%s: want a node configuration (apiVersion: %s, kind: %s, gpus: […]), or one of "+
		"NVIDIA's device plugin (version: %s, sharing: {…})",
		show(root), apiVersion, kind, devicePluginVersion)
	return nil
}

// nodeConfig reads a NodeConfig, the driver's own format.
func (r *reader) nodeConfig(root *yaml.Node) []entry {
	f := r.fields("", root, "apiVersion", "kind", "gpus")
	r.constant(root, f, "apiVersion", apiVersion)
	r.constant(root, f, "kind", kind)
	if f["gpus"] == nil {
		r.problem(root.Line, "gpus", "missing: want a list")
		return nil
	}
	var entries []entry
	r.list("gpus", f["gpus"], func(path string, n *yaml.Node) {
		entries = append(entries, r.entry(path, n))
	})
	return entries
}

func (r *reader) entry(path string, n *yaml.Node) entry {
	before := len(r.problems)
	f := r.fields(path, n, "select", "sharing", "partitions", "isolation", "hook", "sharedOnly", "onePerClaim",
		"passthrough", "health")
	e := entry{line: n.Line, path: path}
	if n := f["select"]; n != nil {
		e.selector = r.selector(path+".select", n)
	}
	if n := f["sharing"]; n != nil {
		e.use.Sharing, e.use.Replicas = r.sharing(path+".sharing", n)
	}
	if e.use.Sharing == gpu.Unlimited {
		e.use.Isolation = gpu.IsolationNone
	}
	if n := f["partitions"]; n != nil {
		e.partitions = value{n.Line, path + ".partitions", n.Value}
		e.use.Partitions = r.partitions(e.partitions.path, n)
	}
	if n := f["isolation"]; n != nil && e.use.Isolation.UnmarshalText([]byte(n.Value)) != nil {
		r.problem(n.Line, path+".isolation", "%s: want mps, none, hook or cgroup", show(n))
	}
	if n := f["hook"]; n != nil {
		e.use.Hook.Path = r.library(path+".hook", n)
	}
	e.use.SharedOnly = r.boolean(path+".sharedOnly", f["sharedOnly"])
	e.use.OnePerClaim = r.boolean(path+".onePerClaim", f["onePerClaim"])
	if n := f["passthrough"]; n != nil {
		e.use.NoPassthrough = !r.boolean(path+".passthrough", n)
	}
	if n := f["health"]; n != nil {
		e.health = r.health(path+".health", n)
	}
	if len(r.problems) == before {
		r.checkEntry(path, f, e.use)
	}
	return e
}

// selector reads the GPUs that an entry selects.
func (r *reader) selector(path string, n *yaml.Node) selector {
	names := []string{"product", "uuid", "index", "architecture"}
	f := r.fields(path, n, names...)
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		r.problem(n.Line, path, "empty: want one or more of %s; an entry for every GPU has no select",
			strings.Join(names, ", "))
	}
	s := selector{}
	for _, name := range names {
		if n := f[name]; n != nil {
			s = append(s, criterion{name, r.values(path+"."+name, n, name)})
		}
	}
	return s
}

// values reads one value or a list of them.
func (r *reader) values(path string, n *yaml.Node, attribute string) []value {
	if n.Kind != yaml.SequenceNode {
		return r.value(path, n, attribute)
	}
	if len(n.Content) == 0 {
		r.problem(n.Line, path, "empty: want one value or more")
	}
	var all []value
	r.list(path, n, func(path string, n *yaml.Node) { all = append(all, r.value(path, n, attribute)...) })
	return all
}

// value reads one value, none if it is invalid.
func (r *reader) value(path string, n *yaml.Node, attribute string) []value {
	var pattern string
	var ok bool
	switch attribute {
	case "index":
		var index int
		if index, ok = r.number(path, n, 0, maxIndex); ok {
			pattern = strconv.Itoa(index)
		}
	case "uuid":
		pattern, ok = r.uuid(path, n)
	default:
		pattern, ok = r.text(path, n)
	}
	if !ok {
		return nil
	}
	return []value{{n.Line, path, pattern}}
}

func (r *reader) uuid(path string, n *yaml.Node) (string, bool) {
	text, ok := r.text(path, n)
	if ok && (!strings.HasPrefix(text, "GPU-") || strings.Contains(text, "*")) {
		r.problem(n.Line, path, "%q: want the UUID of a whole GPU, such as GPU-5f2a1c7e-…; its partitions have no "+
			"configuration of their own", text)
		return "", false
	}
	return text, ok
}

// sharing reads a word or {replicated: N}.
func (r *reader) sharing(path string, n *yaml.Node) (gpu.Sharing, int) {
	if n.Kind == yaml.MappingNode && len(n.Content) > 0 {
		n := r.fields(path, n, "replicated")["replicated"]
		if n == nil {
			return gpu.Replicated, 0
		}
		replicas, _ := r.number(path+".replicated", n, 1, maxReplicas[gpu.IsolationNone])
		return gpu.Replicated, replicas
	}
	switch n.Value {
	case gpu.Fractional.String():
		return gpu.Fractional, 0
	case gpu.Exclusive.String():
		return gpu.Exclusive, 0
	case gpu.Unlimited.String():
		return gpu.Unlimited, 0
	}
	r.problem(n.Line, path, "%s: want fractional, exclusive, unlimited or {replicated: N}", show(n))
	return gpu.Fractional, 0
}

// partitions reads a word. The default has no word: it is a missing field.
func (r *reader) partitions(path string, n *yaml.Node) gpu.Partitions {
	var p gpu.Partitions
	if n.Kind != yaml.ScalarNode || p.UnmarshalText([]byte(n.Value)) != nil || p == gpu.PartitionsAuto {
		r.problem(n.Line, path, "%s: want none, static, dynamic or onDemand; without the field it depends on the GPU",
			show(n))
		return gpu.PartitionsAuto
	}
	return p
}

// library reads the path of the CUDA interposer.
func (r *reader) library(at string, n *yaml.Node) string {
	f := r.fields(at, n, "library")
	if f == nil {
		return ""
	}
	if f["library"] == nil {
		r.problem(n.Line, at+".library", "missing: want the path of a CUDA interposer on the node")
		return ""
	}
	text, ok := r.text(at+".library", f["library"])
	if ok && (!path.IsAbs(text) || path.Clean(text) != text) {
		r.problem(f["library"].Line, at+".library", "%q: want an absolute path, without .. and double slashes", text)
	}
	return text
}

// checkEntry reports conflicting fields of an entry.
func (r *reader) checkEntry(path string, f map[string]*yaml.Node, use gpu.SharingMode) {
	if use.Sharing == gpu.Replicated {
		r.checkReplicas(f["sharing"].Line, path+".sharing.replicated", use)
	}
	switch isolation, hook := f["isolation"], f["hook"]; {
	case isolation != nil && use.Sharing == gpu.Exclusive:
		r.problem(isolation.Line, path+".isolation", "an exclusive GPU has one user and nothing to isolate: leave it "+
			"out")
	case use.Sharing == gpu.Unlimited && use.Isolation != gpu.IsolationNone:
		r.problem(isolation.Line, path+".isolation", "%s: nothing limits the users of an unlimited GPU: leave it out",
			show(isolation))
	case hook != nil && use.Isolation != gpu.IsolationHook:
		r.problem(hook.Line, path+".hook", "only isolation: hook has a library")
	case hook == nil && use.Isolation == gpu.IsolationHook:
		r.problem(isolation.Line, path+".hook", "missing: isolation: hook wants hook: {library: PATH}, a CUDA "+
			"interposer on the node")
	}
	replicated, unlimited := use.Sharing == gpu.Replicated, use.Sharing == gpu.Unlimited
	if n := f["sharedOnly"]; use.SharedOnly && !replicated && !unlimited {
		r.problem(n.Line, path+".sharedOnly", "is for sharing: {replicated: N} and sharing: unlimited, and sharing is "+
			"%s here", use.Sharing)
	}
	if n := f["onePerClaim"]; use.OnePerClaim && !replicated {
		r.problem(n.Line, path+".onePerClaim", "is for sharing: {replicated: N}, and sharing is %s here", use.Sharing)
	}
}

// checkReplicas reports more replicas than the isolation supports.
func (r *reader) checkReplicas(line int, path string, use gpu.SharingMode) {
	most := maxReplicas[use.Isolation]
	if use.Replicas <= most {
		return
	}
	why := "none would be left with a whole percent of the GPU"
	if use.Isolation == gpu.IsolationMPS {
		why = "an MPS server has no more clients"
	}
	r.problem(line, path, "%d: want at most %d with isolation %s, %s", use.Replicas, most, use.Isolation, why)
}
