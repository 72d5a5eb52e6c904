// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// podsIn returns the pods and templates of pods in an object, in the order of their paths: what has containers in its
// spec.
func podsIn(value any) []map[string]any {
	var all []map[string]any
	switch v := value.(type) {
	case map[string]any:
		if containers, ok, _ := unstructured.NestedFieldNoCopy(v, "spec", "containers"); ok {
			if _, isList := containers.([]any); isList {
				return []map[string]any{v}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			all = append(all, podsIn(v[name])...)
		}
	case []any:
		for _, item := range v {
			all = append(all, podsIn(item)...)
		}
	}
	return all
}

// Tell is called with the name of each object that was converted, and what works differently, or that could not be
// converted.
type Tell func(object string, err error, warnings []string)

// Manifests converts the YAML documents of a reader, and writes them with the templates of their claims. Objects that
// ask for nothing are written as they are. The error says that one could not be converted.
func (c Converter) Manifests(in io.Reader, out io.Writer, tell Tell) error {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(in))
	made := map[string]bool{} // templates, by namespace and name
	var failed error
	for {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return failed
		}
		if err != nil {
			return err
		}
		var object map[string]any
		if err := yaml.Unmarshal(text, &object); err != nil {
			return err
		}
		if object == nil {
			continue
		}
		items := []any{object}
		list, isList := object["items"].([]any)
		if isList {
			items = list
		}
		for _, item := range items {
			one, ok := item.(map[string]any)
			if !ok {
				return errors.New("a list has an item that is not an object")
			}
			objects, warnings, err := c.manifest(one)
			if err != nil {
				failed = errors.New("not everything could be converted")
			}
			if err != nil || objects != nil {
				tell(nameOf(one), err, warnings)
			}
			switch {
			case objects == nil && isList:
				objects = []any{one}
			case objects == nil: // as it is, with its comments
				if _, err := fmt.Fprintf(out, "---\n%s\n", bytes.TrimSpace(text)); err != nil {
					return err
				}
			}
			if err := writeNew(out, objects, made); err != nil {
				return err
			}
		}
	}
}

// writeNew writes objects, and of templates only those that are not written yet.
func writeNew(out io.Writer, objects []any, written map[string]bool) error {
	for _, o := range objects {
		if t, ok := o.(*resourceapi.ResourceClaimTemplate); ok {
			name := t.Namespace + "/" + t.Name
			if written[name] {
				continue
			}
			written[name] = true
		}
		if err := write(out, o); err != nil {
			return err
		}
	}
	return nil
}

// nameOf names an object for people.
func nameOf(object map[string]any) string {
	u := unstructured.Unstructured{Object: object}
	if u.GetKind() == "" {
		return "quotas of gpu-admission" // nothing else without a kind is converted
	}
	return u.GetKind() + " " + cmp.Or(u.GetName(), u.GetGenerateName())
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

// manifest returns what an object becomes, and what works differently; nothing if it asks for nothing. The object is
// not changed if there is an error.
func (c Converter) manifest(object map[string]any) (all []any, warnings []string, err error) {
	if quotas, ok := admissionQuotasIn(object); ok {
		return c.AdmissionQuotas(quotas)
	}
	u := &unstructured.Unstructured{Object: object}
	switch u.GetKind() {
	case "ElasticGPUClaim":
		claim, warnings, err := c.ElasticGPUClaim(u)
		if err != nil {
			return nil, nil, err
		}
		return []any{claim}, warnings, nil
	case "ElasticGPUClass":
		class, warnings, err := c.ElasticGPUClass(u)
		if err != nil {
			return nil, nil, err
		}
		return []any{class}, warnings, nil
	}
	pods := podsIn(object)
	conversions := make([]*Conversion, len(pods)) // nil: the pod asks for nothing
	for i, at := range pods {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(at, &pod); err != nil {
			return nil, nil, err
		}
		if conversions[i], err = c.Convert(&pod); err != nil {
			return nil, nil, err
		}
	}
	for i, conversion := range conversions {
		if conversion == nil {
			continue
		}
		template := ""
		if conversion.Spec != nil {
			if template, err = nameFor(manifestPrefix, conversion.Spec); err != nil {
				return nil, nil, err
			}
			t := &resourceapi.ResourceClaimTemplate{}
			t.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("ResourceClaimTemplate"))
			t.Namespace, t.Name = u.GetNamespace(), template
			t.Spec.Spec = *conversion.Spec
			all = append(all, t)
		}
		if err := conversion.Apply(pods[i], template); err != nil {
			return nil, nil, err
		}
		warnings = append(warnings, conversion.Warnings...)
	}
	if slices.ContainsFunc(conversions, func(c *Conversion) bool { return c != nil }) {
		all = append(all, object)
	}
	return all, warnings, nil
}
