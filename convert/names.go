// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ownNames are the names that administrators of older systems gave to resources, and the usual names of those.
type ownNames map[string]string

// check returns an error for each name that is wrong.
func (n ownNames) check() error {
	var errs []error
	for _, own := range slices.Sorted(maps.Keys(n)) {
		switch {
		case len(validation.IsQualifiedName(own)) > 0 || !strings.Contains(own, "/"):
			errs = append(errs, fmt.Errorf("%s: is not the name of an extended resource, such as nvidia.com/vgpu", own))
		case isKnown(corev1.ResourceName(own)):
			errs = append(errs, fmt.Errorf("%s: is a name of an older system itself", own))
		case !isKnown(corev1.ResourceName(n[own])):
			errs = append(errs, fmt.Errorf("%s: %q is not a resource of an older system, such as %s", own, n[own],
				hamiNames.count))
		}
	}
	return errors.Join(errs...)
}

// isKnown reports whether a family has a resource of the name.
func isKnown(name corev1.ResourceName) bool {
	return slices.ContainsFunc(families, func(f family) bool { return slices.Contains(f.Resources, name) })
}

// defaultName returns the name that a family has for a resource of the pod.
func (n ownNames) defaultName(name corev1.ResourceName) corev1.ResourceName {
	if known, ok := n[string(name)]; ok {
		return corev1.ResourceName(known)
	}
	return name
}

// withDefaultNames returns the pod with the names that families have. The error names resources that are there twice.
func (n ownNames) withDefaultNames(pod *corev1.Pod) (*corev1.Pod, field.ErrorList) {
	if len(n) == 0 {
		return pod, nil
	}
	pod = pod.DeepCopy()
	var errs field.ErrorList
	for list, path := range containersOf(pod) {
		for i := range list {
			at := path.Index(i).Child("resources")
			r := &list[i].Resources
			errs = append(errs, n.rename(r.Limits, at.Child("limits"))...)
			errs = append(errs, n.rename(r.Requests, at.Child("requests"))...)
		}
	}
	return pod, errs
}

// rename gives the amounts the names that families have.
func (n ownNames) rename(amounts corev1.ResourceList, path *field.Path) (errs field.ErrorList) {
	for _, own := range slices.Sorted(maps.Keys(amounts)) {
		known := n.defaultName(own)
		if known == own {
			continue
		}
		if _, twice := amounts[known]; twice {
			errs = append(errs, field.Forbidden(path.Key(string(own)), fmt.Sprintf("the container already has %s, "+
				"which means the same; keep one", known)))
			continue
		}
		amounts[known] = amounts[own]
		delete(amounts, own)
	}
	return errs
}

// renamed returns the resources of the container that have another name in it.
func (n ownNames) renamed(original corev1.Container) map[corev1.ResourceName]bool {
	all := map[corev1.ResourceName]bool{}
	for own := range limits(&original) {
		if known := n.defaultName(own); known != own {
			all[known] = true
		}
	}
	return all
}

// inOwnNames puts the names that the container has into the paths of errors.
func (n ownNames) inOwnNames(errs field.ErrorList, original corev1.Container) {
	for _, own := range slices.Sorted(maps.Keys(limits(&original))) {
		for _, e := range errs {
			e.Field = strings.ReplaceAll(e.Field, "["+string(n.defaultName(own))+"]", "["+string(own)+"]")
		}
	}
}

// containersOf yields the lists of containers of a pod with their paths: those that run all the time first.
func containersOf(pod *corev1.Pod) func(yield func([]corev1.Container, *field.Path) bool) {
	return func(yield func([]corev1.Container, *field.Path) bool) {
		spec := field.NewPath("spec")
		if yield(pod.Spec.Containers, spec.Child("containers")) {
			yield(pod.Spec.InitContainers, spec.Child("initContainers"))
		}
	}
}
