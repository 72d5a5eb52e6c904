// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// typedPod returns the pod, or the template of pods, that the object says. The error names the field, the container and
// the value.
func typedPod(object map[string]any) (*corev1.Pod, error) {
	metadata, _ := object["metadata"].(map[string]any)
	spec, _ := object["spec"].(map[string]any)
	var errs field.ErrorList
	for _, name := range []string{"annotations", "labels"} {
		errs = append(errs, texts(metadata[name], field.NewPath("metadata", name))...)
	}
	errs = append(errs, texts(spec["nodeSelector"], field.NewPath("spec", "nodeSelector"))...)
	for _, list := range []string{"initContainers", "containers"} {
		all, _ := spec[list].([]any)
		for i, one := range all {
			errs = append(errs, badContainer(one, field.NewPath("spec", list).Index(i))...)
		}
	}
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	var pod corev1.Pod
	if runtime.DefaultUnstructuredConverter.FromUnstructured(object, &pod) == nil {
		return &pod, nil
	}
	return &pod, decode(object, &pod) // its errors name fields
}

// decode decodes an object. Its error names the field, in most cases.
func decode(object any, into any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// texts refuses values of a map that are no texts, such as numbers without quotes.
func texts(values any, path *field.Path) (errs field.ErrorList) {
	all, _ := values.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch value := all[name].(type) {
		case string, nil:
		case map[string]any, []any:
			errs = append(errs, field.TypeInvalid(path.Key(name), "", "must be a text"))
		default:
			errs = append(errs, field.TypeInvalid(path.Key(name), value, fmt.Sprintf("must be a text: write \"%v\", "+
				"with quotes", value)))
		}
	}
	return errs
}

// badContainer returns what keeps a container from being decoded.
func badContainer(object any, path *field.Path) (errs field.ErrorList) {
	container, ok := object.(map[string]any)
	if !ok {
		return field.ErrorList{field.TypeInvalid(path, object, "must be an object")}
	}
	if name, ok := container["name"].(string); ok {
		path = path.Key(name)
	}
	resources, _ := container["resources"].(map[string]any)
	for _, kind := range []string{"limits", "requests"} {
		amounts, _ := resources[kind].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(amounts)) {
			if _, err := resource.ParseQuantity(fmt.Sprint(amounts[name])); err != nil {
				errs = append(errs, field.Invalid(path.Child("resources", kind).Key(name), amounts[name], "must be an "+
					"amount, such as 3, 500m or 4Gi"))
			}
		}
	}
	if len(errs) > 0 {
		return errs
	}
	for _, name := range slices.Sorted(maps.Keys(container)) {
		if err := decode(map[string]any{name: container[name]}, &corev1.Container{}); err != nil {
			errs = append(errs, field.TypeInvalid(path.Child(name), "", err.Error()))
		}
	}
	return errs
}
