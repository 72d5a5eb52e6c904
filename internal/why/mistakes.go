// SPDX-License-Identifier: Apache-2.0

package why

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/pkg/nearest"
)

// maxClasses is how many classes are tried in place of one that has no devices.
const maxClasses = 16

// found is a mistake in a clause of a subrequest.
type found struct {
	ref    selectorRef
	clause int
	*selectors.Mistake
}

// mistakes returns the clauses of the subrequest that no device of its class meets and that have a mistake: one
// that is sure, or a value outside of a list. A list may well have an alternative for devices that are not there.
func (q *question) mistakes(claim, number int, candidates []candidate) []found {
	var all []found
	var words *selectors.Vocabulary
	p := cluster.Subrequests(&q.w.claims[claim].Spec)[number]
	for k := range *p.Selectors {
		ref := selectorRef{requestID{claim, number}, k}
		for n, c := range q.w.clauses[ref] {
			if n == selectors.ExplainedClauses || q.ctx.Err() != nil {
				break
			}
			if len(c.Named) == 0 || q.anyMeets(c.Text, candidates) {
				continue
			}
			if words == nil {
				words = vocabularyOf(candidates)
			}
			if m := words.Mistake(c); m != nil && (m.Sure || m.Value && p.Alternative < 0) {
				all = append(all, found{ref, n, m})
			}
		}
	}
	return all
}

// noteMistakes notes the mistakes in alternatives that the workload gets nowhere, although it gets a later one.
func (q *question) noteMistakes(r *Answer, placements []placement) {
	for i, claim := range q.w.claims {
		first := map[string]bool{} // alternatives that some node gives
		for _, found := range placements {
			for _, d := range found.results[i].Devices.Results {
				first[d.Request] = true
			}
		}
		number := 0
		for k, alternatives := range cluster.Requests(&claim.Spec) {
			isRanked := ranked(claim.Spec.Devices.Requests[k].FirstAvailable)
			given := slices.IndexFunc(alternatives, func(s cluster.Subrequest) bool { return first[s.Name] })
			for j, s := range alternatives {
				if number++; isRanked || j >= given || q.classes[*s.Class] == nil {
					continue
				}
				candidates, err := q.compare(i, number-1, q.groups, maxCandidates)
				if err != nil {
					return // it is only a note
				}
				for _, m := range q.mistakes(i, number-1, candidates) {
					r.Notes = append(r.Notes, fmt.Sprintf("request %s of %s: %s", s.Name, q.w.origins[i].label, m.Text))
				}
			}
		}
	}
}

// anyMeets reports whether a device of the class meets the expression.
func (q *question) anyMeets(expression string, candidates []candidate) bool {
	return slices.ContainsFunc(candidates, func(f candidate) bool {
		if !f.ofClass() {
			return false
		}
		ok, err := meets(q.ctx, f.slice.Spec.Driver, f.device, selectors.Compiled.GetOrCompile(expression))
		return ok && err == nil || q.ctx.Err() != nil
	})
}

// vocabularyOf returns what selectors of the class's devices can name.
func vocabularyOf(candidates []candidate) *selectors.Vocabulary {
	words := selectors.NewVocabulary()
	type parts struct{ attributes, capacity uintptr } // equal devices may share them
	seen := map[parts]bool{}
	for _, f := range candidates {
		if !f.ofClass() {
			continue
		}
		of := parts{reflect.ValueOf(f.device.Attributes).Pointer(), reflect.ValueOf(f.device.Capacity).Pointer()}
		if !seen[of] {
			seen[of] = true
			words.Add(f.slice.Spec.Driver, f.device)
		}
	}
	return words
}

// mistakeCause names the mistakes in the selectors of the first request that has any. problem is the error of the
// allocator. It returns "" if there are none.
func (e *explanation) mistakeCause(problem error) string {
	for i, claim := range e.w.claims {
		for j, p := range cluster.Subrequests(&claim.Spec) {
			var texts []string
			for _, m := range e.mistakes(i, j, e.candidates[requestID{i, j}]) {
				if !slices.Contains(texts, m.Text) {
					texts = append(texts, m.Text)
				}
			}
			if len(texts) > 0 {
				text := fmt.Sprintf("request %s of %s: %s", p.Name, e.w.origins[i].label, strings.Join(texts, "; "))
				if problem != nil && !errors.Is(problem, errLimit) {
					text += " (the selector fails on devices of the class, and then the scheduler gives up on the pod)"
				}
				return text
			}
		}
	}
	return ""
}

// corrections replaces names and values that no device has by those that were likely meant.
func (ps *proposals) corrections(claim, number int, candidates []candidate) []*change {
	p := cluster.Subrequests(&ps.w.claims[claim].Spec)[number]
	var all []*change
	for _, m := range ps.mistakes(claim, number, candidates) {
		if ps.classes[m.Class] != nil {
			all = append(all, &change{kind: UseClass, in: ps.w.origins[claim].object, request: p.Name,
				target: m.ref.clause(m.clause), levels: 1,
				text: one(fmt.Sprintf("use the class %s, without %s", m.Class, ps.w.clauses[m.ref][m.clause].Text)),
				apply: func(w *workload, _ int) {
					*cluster.Subrequests(&w.claims[claim].Spec)[number].Class = m.Class
					w.setClause(m.ref, m.clause, "")
				}})
		}
		if len(m.Fixes) == 0 {
			continue
		}
		c := &change{kind: Correct, in: ps.w.origins[claim].object, request: p.Name,
			target: m.ref.clause(m.clause),
			levels: len(m.Fixes), try: upTo(len(m.Fixes)),
			text: func(level int) string {
				return fmt.Sprintf("write %s instead of %s", m.Fixes[level], ps.w.clauses[m.ref][m.clause].Text)
			},
			apply: func(w *workload, level int) { w.setClause(m.ref, m.clause, m.Fixes[level]) }}
		if m.Wrong != (selectors.Path{}) { // each clause of the selector names it
			c.text = one(fmt.Sprintf("write %s instead of %s", m.Right, m.Wrong))
			c.apply = func(w *workload, _ int) {
				for n, other := range ps.w.clauses[m.ref] {
					if slices.Contains(other.Named, m.Wrong) {
						w.setClause(m.ref, n, other.Renamed(m.Wrong, m.Right))
					}
				}
			}
		}
		all = append(all, c)
	}
	return all
}

// missingClass says that the class of a subrequest does not exist, and which was likely meant.
func (e *explanation) missingClass(p cluster.Subrequest, of origin) string {
	if resource := of.extended[p.Name]; resource != "" {
		return e.missingResource(resource)
	}
	return fmt.Sprintf("request %s of %s asks for the class %s, which does not exist%s", p.Name, of.label, *p.Class,
		e.classHint(*p.Class))
}

// classHint ends a sentence about a class without devices: with the nearest class of partitions that nodes offer, what
// nodes need for virtual machines or remote GPUs, or the class that was likely meant.
func (e *explanation) classHint(name string) string {
	if !nearest.Profile(name) {
		if e.classes[name] != nil && (strings.HasPrefix(name, "vfio.") || strings.HasPrefix(name, "vgpu.")) {
			needs := "an IOMMU and the driver vfio-pci"
			if strings.HasPrefix(name, "vgpu.") {
				needs = "NVIDIA's driver for hosts of vGPUs"
			}
			return "; an administrator offers GPUs to virtual machines (virtualMachines.enabled of the chart), a " +
				"node needs " + needs + ", and the command check says what is missing"
		}
		if _, isRemote := remote.Local(name); isRemote && e.classes[name] != nil {
			return "; server pods offer GPUs over the network to nodes with the label " + remote.ClientLabel + "=true"
		}
		if e.classes[name] != nil {
			return ""
		}
		return nearest.Hint(name, slices.Sorted(maps.Keys(e.classes)))
	}
	for _, near := range nearest.Profiles(name, slices.Sorted(maps.Keys(e.classes))) {
		if e.offered(e.classes[near]) {
			return fmt.Sprintf("; the nearest that is offered is %s", near)
		}
	}
	return ""
}

// offered reports whether a node has a device of the class.
func (q *question) offered(class *resourceapi.DeviceClass) bool {
	for _, slice := range q.Slices {
		for i := range slice.Spec.Devices {
			if q.ctx.Err() != nil {
				return false
			}
			if OfClass(q.ctx, class, slice.Spec.Driver, &slice.Spec.Devices[i]) {
				return true
			}
		}
	}
	return false
}

// otherClasses returns the classes to try in place of one that has no devices, the nearest first: in place of a
// partition, only partitions.
func (ps *proposals) otherClasses(name string) []string {
	all := slices.Sorted(maps.Keys(ps.classes))
	if nearest.Profile(name) {
		near := nearest.Profiles(name, all)
		return near[:min(len(near), maxClasses)]
	}
	if ps.classes[name] != nil {
		return nil // the others are of something else
	}
	near := nearest.Names(name, all, maxClasses)
	label, _, _ := strings.Cut(name, ".")
	for _, other := range all { // gpu.example.com may be meant to be gpu.nvidia.com, and nic.example.com not
		if first, _, _ := strings.Cut(other, "."); first == label && len(near) < maxClasses &&
			!slices.Contains(near, other) {
			near = append(near, other)
		}
	}
	return near
}

// older are beginnings of the names of resources of older sharing systems, which the controller converts.
var older = map[string]string{"nvidia.com/gpumem": "HAMi", "nvidia.com/gpucores": "HAMi", "nvidia.com/priority": "HAMi",
	"volcano.sh/": "Volcano", "aliyun.com/gpu-": "gpushare", "tencent.com/vcuda-": "gpu-manager",
	"tke.cloud.tencent.com/qgpu-": "qGPU", "elasticgpu.": "qGPU", "resource.nvidia.com/tflops": "the conversion"}

// missingResource says that nothing offers an extended resource, and which was likely meant.
func (e *explanation) missingResource(name corev1.ResourceName) string {
	for prefix, system := range older {
		if strings.HasPrefix(string(name), prefix) {
			return fmt.Sprintf("%s is a resource of %s: label the namespace gpu.nvidia.com/convert=on, and create the "+
				"pod again; it is then converted to a claim (docs/move.md)", name, system)
		}
	}
	text := fmt.Sprintf("no node offers %s", name)
	offered := e.offeredResources()
	if class := e.ofClass(name); class != nil && slices.Contains(offered, string(name)) {
		return fmt.Sprintf("%s: of the classes with this extendedResourceName the newest counts, %s, and no device is "+
			"of it", text, class.Name)
	}
	if nearest.Profile(string(name)) {
		if near := nearest.Profiles(string(name), offered); len(near) > 0 {
			return fmt.Sprintf("%s; the nearest that is offered is %s", text, near[0])
		}
	}
	if hint := nearest.Hint(string(name), offered); hint != "" || len(offered) == 0 {
		return text + hint
	}
	return text + "; offered are " + strings.Join(offered[:min(len(offered), selectors.ShownTexts)], ", ")
}

// offeredResources returns the extended resources of classes with devices, and those of device plugins, sorted.
func (e *explanation) offeredResources() []string {
	found := map[string]bool{}
	for _, class := range e.Classes {
		if name := class.Spec.ExtendedResourceName; name != nil && e.offered(class) {
			found[*name] = true
		}
	}
	for _, node := range e.nodes {
		for name := range node.Status.Allocatable {
			if isExtended(name) && fromPlugin(node, name) {
				found[string(name)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// unofferedResource returns the cause if the pod requests an extended resource that no class and no device plugin has.
func (e *explanation) unofferedResource() string {
	if e.w.pod == nil {
		return ""
	}
	requests := requestsOf(e.w.pod)
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		amount := requests[name]
		if !isExtended(name) || amount.IsZero() {
			continue
		}
		class := e.ofClass(name)
		if class != nil && e.offered(class) || slices.ContainsFunc(e.nodes, func(n *corev1.Node) bool {
			return fromPlugin(n, name)
		}) {
			continue
		}
		return e.missingResource(name)
	}
	return ""
}
