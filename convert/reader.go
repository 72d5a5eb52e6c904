// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// maxGPUs is the number of devices that a claim can have.
	maxGPUs = resourceapi.AllocationResultsMaxSize
	// maxMemory is more memory than a GPU has. It keeps sums from overflowing.
	maxMemory = 16 << 40
	// maxListed is the number of entries of a list in an annotation, and maxEntry the length of one. They keep
	// selectors below the limit of Kubernetes.
	maxListed = 32
	maxEntry  = 64
	// maxShown is how much of an annotation an error repeats.
	maxShown = 200
)

// reader reads what a container asks for, and collects errors and warnings.
type reader struct {
	container
	errs     field.ErrorList
	warnings []string
}

// refuse adds an error for the value of a resource.
func (r *reader) refuse(name corev1.ResourceName, format string, args ...any) {
	q := r.Resources[name]
	r.errs = append(r.errs, field.Invalid(r.Path.Key(string(name)), q.String(), fmt.Sprintf(format, args...)))
}

// refuseAnnotation adds an error for the value of an annotation.
func (r *reader) refuseAnnotation(name, format string, args ...any) {
	if len(r.errs) == maxTexts {
		return
	}
	value := r.Annotations[name]
	if len(value) > maxShown {
		value = strings.ToValidUTF8(value[:maxShown], "") + "…"
	}
	r.errs = append(r.errs, field.Invalid(r.AnnotationPath.Key(name), value, fmt.Sprintf(format, args...)))
}

func (r *reader) warn(format string, args ...any) {
	if len(r.warnings) < maxTexts {
		r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
	}
}

// has reports whether the container has a resource, also if it is 0.
func (r *reader) has(name corev1.ResourceName) bool {
	_, ok := r.Resources[name]
	return ok
}

// firstOf returns the first resource that the container has.
func (r *reader) firstOf(names ...corev1.ResourceName) corev1.ResourceName {
	for _, name := range names {
		if r.has(name) {
			return name
		}
	}
	return names[0]
}

// annotated reports whether the pod has an annotation.
func (r *reader) annotated(name string) bool {
	_, ok := r.Annotations[name]
	return ok
}

// amount returns the value of a resource; 0: the container does not ask for it. unit is for the error.
func (r *reader) amount(name corev1.ResourceName, most int64, unit string) int64 {
	n, err := r.count(name)
	if err != nil {
		r.errs = append(r.errs, err)
		return 0
	}
	if n > most {
		r.refuse(name, "must be at most %d: the unit is %s", most, unit)
		return 0
	}
	return n
}

// memory returns the value of a resource in bytes.
func (r *reader) memory(name corev1.ResourceName, unit int64) int64 {
	text := fmt.Sprintf("%d MiB", unit/mib)
	if unit%gib == 0 {
		text = fmt.Sprintf("%d GiB", unit/gib)
	}
	return r.amount(name, maxMemory/unit, text) * unit
}

// annotatedNumber returns the value of an annotation; 0: the pod does not have it, or it is wrong.
func (r *reader) annotatedNumber(name string, most int64) int64 {
	value, ok := r.Annotations[name]
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
	if err != nil || n < 1 || n > most {
		r.refuseAnnotation(name, "must be a whole number from 1 to %d, without a unit", most)
		return 0
	}
	return n
}

// annotatedBool returns the value of an annotation that is true or false; false: the pod does not have it.
func (r *reader) annotatedBool(name string) bool {
	text, ok := r.Annotations[name]
	if !ok {
		return false
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		r.refuseAnnotation(name, "must be true or false")
	}
	return value
}

// annotatedMemory returns the value of an annotation in bytes, rounded up to MiB.
func (r *reader) annotatedMemory(name string) int64 {
	q, err := resource.ParseQuantity(r.Annotations[name])
	if err != nil || q.Sign() <= 0 || q.Cmp(*resource.NewQuantity(maxMemory, resource.BinarySI)) > 0 {
		r.refuseAnnotation(name, "must be an amount of memory such as 7680Mi, more than 0 and at most %d TiB",
			maxMemory>>40)
		return 0
	}
	return (q.Value() + mib - 1) / mib * mib
}

// list returns the entries of an annotation that are separated by commas.
func (r *reader) list(name string, valid func(rune) bool, accepted string) []string {
	value, ok := r.Annotations[name]
	if !ok {
		return nil
	}
	var entries []string
	for _, entry := range strings.Split(value, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" || len(entry) > maxEntry ||
			strings.ContainsFunc(entry, func(c rune) bool { return !valid(c) }) {
			r.refuseAnnotation(name, "must be a list of %s, separated by commas, each at most %d characters", accepted,
				maxEntry)
			return nil
		}
		entries = append(entries, entry)
	}
	if len(entries) > maxListed {
		r.refuseAnnotation(name, "must have at most %d entries", maxListed)
		return nil
	}
	return entries
}

// perPod warns that each container has a share of its own, in a family that put all containers of a pod on one GPU.
func (r *reader) perPod(memory corev1.ResourceName) {
	n := 0
	for i := range r.Pod.Spec.Containers {
		if _, ok := limits(&r.Pod.Spec.Containers[i])[memory]; ok {
			n++
		}
	}
	if n > 1 && r.has(memory) {
		r.warn("%s: its share may be of another GPU than those of the pod's other containers", memory)
	}
}

// hasContainer reports whether the pod has a container or an init container of the name.
func (r *reader) hasContainer(name string) bool {
	is := func(c corev1.Container) bool { return c.Name == name }
	return slices.ContainsFunc(r.Pod.Spec.Containers, is) || slices.ContainsFunc(r.Pod.Spec.InitContainers, is)
}

// attribute returns the CEL expression for an attribute of the driver.
func (r *reader) attribute(name string) string {
	return fmt.Sprintf("device.attributes['%s'].%s", r.Driver, name)
}

// result returns the request, or the errors.
func (r *reader) result(request *gpuRequest) (*gpuRequest, field.ErrorList) {
	if len(r.errs) > 0 || request == nil {
		return nil, r.errs
	}
	if request.Cores == 100 && request.Memory == 0 && request.MemoryShare == 0 {
		request.Cores = 0 // all of both is a whole GPU
	}
	request.Warnings = r.warnings
	return request, nil
}

// graphic accepts printable ASCII characters.
func graphic(c rune) bool { return c >= ' ' && c <= '~' }

func digit(c rune) bool { return c >= '0' && c <= '9' }

// uuidCharacter accepts the characters of a UUID of NVIDIA.
func uuidCharacter(c rune) bool {
	return digit(c) || c == '-' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// quoted returns the entries as a list of CEL.
func quoted(entries []string) string {
	var all []string
	for _, e := range entries {
		all = append(all, strconv.Quote(e))
	}
	return "[" + strings.Join(all, ", ") + "]"
}
