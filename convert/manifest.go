// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// errNotAll means that something was not converted.
var errNotAll = errors.New("not everything could be converted")

// result is what became of an object that is not passed on as it is.
type result struct {
	Object    string // its kind and name
	Line      int    // where its document begins
	Converted bool
	Err       error // why not
	Warnings  []string
	Passed    []place // names of older systems that are left in it
}

// manifests converts the YAML documents of a reader, and writes them with the templates of their claims. Everything
// else is written as it is. Errors: errNotAll, and those of the reader and the writer.
func (c converter) manifests(in io.Reader, out io.Writer, tell func(result)) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	var failed error
	m := manifests{converter: c, out: out, made: map[string]bool{}, tell: func(r result) {
		if r.Err != nil || len(r.Passed) > 0 {
			failed = errNotAll
		}
		tell(r)
	}}
	for _, d := range documents(text) {
		if err := m.convert(d); err != nil {
			return err
		}
	}
	return failed
}

// manifests converts documents.
type manifests struct {
	converter
	out  io.Writer
	tell func(result)
	made map[string]bool // templates, by namespace and name
}

// convert converts a document and writes it.
func (m manifests) convert(d document) error {
	if d.isBlank() {
		return nil
	}
	object, node, err := d.parse()
	if err != nil {
		m.tell(result{Object: "document", Line: d.line, Err: err})
	}
	if err != nil || object == nil {
		return m.pass(d)
	}
	items, nodes := []any{object}, []*yamlv3.Node{node}
	if list, ok := object["items"].([]any); ok && strings.HasSuffix(nameOf(object).kind, "List") {
		items, nodes = list, itemsOf(node)
	}
	var all []any
	converted := false
	for i, item := range items {
		one, ok := item.(map[string]any)
		if !ok || len(nodes) != len(items) {
			m.tell(result{Object: "document", Line: d.line,
				Err: errors.New("a list has an item that is not an object")})
			return m.pass(d)
		}
		objects, report := m.object(one, nodes[i], d.line)
		report.Converted = objects != nil
		if report.Converted || report.Err != nil || len(report.Passed) > 0 || len(report.Warnings) > 0 {
			m.tell(report)
		}
		if converted = converted || report.Converted; !report.Converted {
			objects = []any{one}
		}
		all = append(all, objects...)
	}
	if !converted { // with its comments
		return m.pass(d)
	}
	return m.write(all)
}

// itemsOf returns the items of a list.
func itemsOf(list *yamlv3.Node) []*yamlv3.Node {
	for i := 0; i+1 < len(list.Content); i += 2 {
		if items := list.Content[i+1]; list.Content[i].Value == "items" && items.Kind == yamlv3.SequenceNode {
			return items.Content
		}
	}
	return nil
}

// pass writes a document as it is.
func (m manifests) pass(d document) error {
	_, err := fmt.Fprintf(m.out, "---\n%s\n", strings.Trim(string(d.text), "\n"))
	return err
}

// write writes objects, and of templates only those that are not written yet.
func (m manifests) write(objects []any) error {
	for _, o := range objects {
		if t, ok := o.(*resourceapi.ResourceClaimTemplate); ok {
			name := t.Namespace + "/" + t.Name
			if m.made[name] {
				continue
			}
			m.made[name] = true
		}
		if err := write(m.out, o); err != nil {
			return err
		}
	}
	return nil
}

// objectName names an object for people.
type objectName struct{ group, kind, name string }

func nameOf(object map[string]any) objectName {
	u := unstructured.Unstructured{Object: object}
	return objectName{u.GroupVersionKind().Group, u.GetKind(), cmp.Or(u.GetName(), u.GetGenerateName())}
}

func (n objectName) String() string {
	if n.kind == "" {
		return strings.TrimSpace("object " + n.name)
	}
	return n.kind + " " + n.name
}

// write writes an object as a document, without the empty fields that typed objects have.
func write(out io.Writer, object any) error {
	if _, ok := object.(map[string]any); !ok {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return err
		}
		for _, path := range [][]string{{"status"}, {"spec", "metadata"}} {
			if empty, _, _ := unstructured.NestedMap(fields, path...); len(empty) == 0 {
				unstructured.RemoveNestedField(fields, path...)
			}
		}
		object = fields
	}
	text, err := yaml.Marshal(object)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "---\n%s", text)
	return err
}

// object returns what an object becomes; nil: it stays as it is, and is not changed.
func (m manifests) object(object map[string]any, node *yamlv3.Node, line int) ([]any, result) {
	report := result{Object: nameOf(object).String(), Line: line}
	if kind, _ := object["kind"].(string); kind == "ElasticGPUClaim" || kind == "ElasticGPUClass" {
		report.Err = fmt.Errorf(
			"an %s is not converted: docs/migrate/old-manifests.md says what to write in its place", kind)
		return nil, report
	}
	return m.withPods(&unstructured.Unstructured{Object: object}, node, report)
}

// withPods returns what an object with pods becomes.
func (m manifests) withPods(u *unstructured.Unstructured, node *yamlv3.Node, report result) ([]any, result) {
	pods := podsIn(u.Object)
	look := m.seeker(report.Line)
	for _, p := range pods {
		look.skip[p.path] = true
	}
	if look.seek(node, ""); slices.Contains(systemGroups, nameOf(u.Object).group) {
		look.found = append(look.found, place{report.Line + node.Line - 1, "kind", report.Object})
	}
	report.Passed = look.found
	for i := range pods {
		p := &pods[i]
		if p.typed, report.Err = typedPod(p.object); report.Err == nil {
			p.conversion, report.Err = m.convertPod(p.typed)
		}
		if report.Err != nil {
			if p.path != "" {
				report.Err = fmt.Errorf("%s: %w", p.path, report.Err)
			}
			return nil, report
		}
		if p.conversion == nil {
			report.Warnings = append(report.Warnings, m.unconverted(p.typed)...)
		}
	}
	return m.apply(u, pods, report)
}

// systemGroups are the API groups of older systems whose objects ask for GPUs by fields of their own.
var systemGroups = []string{"tensor-fusion.ai", "run.ai"}

// apply writes the conversions into the object, and returns it with the templates of its claims; nil: it has none.
func (m manifests) apply(u *unstructured.Unstructured, pods []podIn, report result) (all []any, _ result) {
	for _, p := range pods {
		if p.conversion == nil {
			continue
		}
		template := ""
		if spec := p.conversion.Spec; spec != nil {
			if template, report.Err = nameFor(manifestPrefix, spec); report.Err != nil {
				return nil, report
			}
			t := &resourceapi.ResourceClaimTemplate{}
			t.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("ResourceClaimTemplate"))
			t.Namespace, t.Name = u.GetNamespace(), template
			t.Spec.Spec = *spec
			all = append(all, t)
		}
		if report.Err = p.conversion.apply(p.object, template); report.Err != nil {
			return nil, report
		}
		report.Warnings = append(report.Warnings, p.conversion.Warnings...)
		report.Warnings = append(report.Warnings, p.rayGPUs(nameOf(u.Object).group)...)
	}
	if !slices.ContainsFunc(pods, func(p podIn) bool { return p.conversion != nil }) {
		return nil, report
	}
	if group := nameOf(u.Object).group; !slices.Contains(builtinGroups, group) {
		report.Warnings = append(report.Warnings, "its CRD must have the pods of Kubernetes 1.31 or newer "+
			"(resourceClaims[].resourceClaimTemplateName); otherwise the API server drops the claims")
	}
	if queue, ok := u.GetLabels()[queueLabel]; ok {
		report.Warnings = append(report.Warnings, fmt.Sprintf("%s: quotas of the queue %s on the resources that are "+
			"removed do not count it", queueLabel, queue))
	}
	return append(all, u.Object), report
}

// podIn is a pod, or a template of pods, in an object.
type podIn struct {
	path           string
	object, parent map[string]any
	typed          *corev1.Pod
	conversion     *conversion // nil: it asks for nothing
}

// builtinGroups are the API groups of Kubernetes whose objects have templates of pods.
var builtinGroups = []string{"", "apps", "batch", "extensions"}

// withoutClaims are API groups whose templates of pods accept no claims.
var withoutClaims = []string{"serving.knative.dev"}

// podsIn returns the object if it is a pod, or the templates of pods in it, in the order of their paths. A template is
// what has containers in its spec and a name that ends with "template"; other objects that have containers in their
// spec, such as the SidecarSet of OpenKruise, have no claims.
func podsIn(object map[string]any) (all []podIn) {
	name := nameOf(object)
	switch {
	case name.kind == "Pod" && name.group == "" && hasContainers(object):
		return []podIn{{object: object}}
	case slices.Contains(withoutClaims, name.group):
		return nil
	}
	var look func(value any, path string)
	look = func(value any, path string) {
		switch v := value.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				at := strings.TrimPrefix(path+"."+key, ".")
				inner, ok := v[key].(map[string]any)
				if ok && strings.HasSuffix(strings.ToLower(key), "template") && hasContainers(inner) {
					all = append(all, podIn{path: at, object: inner, parent: v})
					continue
				}
				look(v[key], at)
			}
		case []any:
			for i, item := range v {
				look(item, fmt.Sprintf("%s[%d]", path, i))
			}
		}
	}
	look(object, "")
	return all
}

// hasContainers reports whether the object has a list of containers in its spec.
func hasContainers(object map[string]any) bool {
	spec, _ := object["spec"].(map[string]any)
	_, ok := spec["containers"].([]any)
	return ok
}

// rayGPUs tells Ray how many GPUs its container has, unless the parameter is there. KubeRay counts limits whose names
// end with "gpu".
func (p podIn) rayGPUs(group string) []string {
	if group != "ray.io" || len(p.conversion.containers) == 0 {
		return nil
	}
	for _, a := range p.conversion.containers {
		if a.init || a.index != 0 || a.gpus == 0 {
			continue
		}
		parameters, ok := p.parent["rayStartParams"].(map[string]any)
		if !ok {
			parameters = map[string]any{}
			p.parent["rayStartParams"] = parameters
		}
		if _, ok := parameters["num-gpus"]; ok {
			return nil
		}
		parameters["num-gpus"] = strconv.FormatInt(a.gpus, 10)
		return []string{fmt.Sprintf("rayStartParams.num-gpus: %d is added, because KubeRay counts only resources in "+
			"limits", a.gpus)}
	}
	return nil
}
