// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	kaiFraction  = "gpu-fraction"
	kaiMemory    = "gpu-memory"
	kaiDevices   = "gpu-fraction-num-devices"
	kaiContainer = "gpu-fraction-container-name"
	kaiMode      = "kai.scheduler/gpu-compute-sharing-mode"
	// kaiPrefix, the name of a container and a suffix are the names of the newer annotations.
	kaiPrefix        = "nvidia.com/container."
	kaiRequest       = ".gpu-memory.request"
	kaiLimit         = ".gpu-memory.limit"
	kaiContainerMode = ".gpu-compute.mode"
	wholeGPU         = corev1.ResourceName("nvidia.com/gpu")
)

// kaiLimits are limits up to which a pod may use what nobody else does: those of Run:ai have a hyphen.
var kaiLimits = []string{kaiFraction + "-limit", kaiFraction + ".limit", kaiMemory + "-limit", kaiMemory + ".limit"}

// kai is the KAI scheduler and Run:ai. A fraction is one of the memory; according to KAI's documentation it does not
// limit compute. One container of a pod has the GPU: the first one, unless an annotation names another.
var kai = family{
	Name:               "kai",
	Annotations:        []string{kaiFraction, kaiMemory},
	AnnotationPrefixes: []string{kaiPrefix},
	Foreign:            regexp.MustCompile(`^gpu-(fraction|memory)|^mps$|^(kai\.scheduler|run\.ai|runai)/`),
	Known:              append([]string{kaiFraction, kaiMemory, kaiDevices, kaiContainer, kaiMode}, kaiLimits...),
	read:               func(r *reader) *gpuRequest { return kaiReader{r}.read() },
}

// kaiReader reads the annotations of KAI and Run:ai.
type kaiReader struct{ *reader }

// read takes the first amount. The others have to be the same: KAI's webhook writes one amount under several names.
func (r kaiReader) read() *gpuRequest {
	r.checkNames()
	amounts := []string{kaiPrefix + r.Name + kaiRequest, kaiPrefix + r.Name + kaiLimit}
	limits := []string{"kai.scheduler/container." + r.Name + ".gpu-memory.portion.limit"}
	if r.concerns() {
		amounts, limits = append(amounts, kaiFraction, kaiMemory), append(limits, kaiLimits...)
	}
	at := slices.IndexFunc(amounts, r.annotated)
	if at < 0 {
		return nil
	}
	asked := amounts[at]
	amount := r.amount(asked)
	for _, name := range append(amounts[at+1:], limits...) {
		if !r.annotated(name) || amount.whole() {
			continue
		}
		switch other := r.amount(name); {
		case other.whole() || other.equal(amount):
		case (other.Memory == 0) != (amount.Memory == 0):
			r.refuseAnnotation(name, "must not be combined with %s", asked)
		default:
			r.refuseAnnotation(name, "must be %s, %s: a claim has one amount of memory, which is the limit; ask for "+
				"as much as the program may use", asked, r.Annotations[asked])
		}
	}
	request := &amount
	if amount.MemoryShare != 0 {
		request.Environment = map[string]string{
			"GPU_PORTION": strconv.FormatFloat(amount.MemoryShare, 'f', -1, 64)}
	}
	request.Count = max(1, r.annotatedNumber(kaiDevices, maxGPUs))
	r.mode(request, kaiMode)
	r.mode(request, kaiPrefix+r.Name+kaiContainerMode)
	if r.has(wholeGPU) {
		r.refuse(wholeGPU, "must not be combined with a part of a GPU")
	}
	return request
}

// concerns reports whether the container is the one that gets what the annotations of the pod ask for.
func (r kaiReader) concerns() bool {
	name, ok := r.Annotations[kaiContainer]
	if !ok {
		return r.First
	}
	if r.First && !r.hasContainer(name) {
		r.refuseAnnotation(kaiContainer, "the pod has no container of this name")
	}
	return name == r.Name
}

// amount returns the memory of an annotation. It is none if the annotation is wrong.
func (r kaiReader) amount(name string) (a gpuRequest) {
	switch {
	case strings.HasPrefix(name, kaiFraction), strings.HasSuffix(name, ".portion.limit"):
		share, err := strconv.ParseFloat(strings.TrimSpace(r.Annotations[name]), 64)
		if err != nil || !(share > 0 && share < 1) { // NaN too
			r.refuseAnnotation(name, "must be a number greater than 0 and less than 1; for whole GPUs use %s", wholeGPU)
			return a
		}
		a.MemoryShare = share
	case strings.HasSuffix(name, ".limit"), strings.HasSuffix(name, ".request"):
		a.Memory = r.annotatedMemory(name)
	default:
		a.Memory = r.annotatedNumber(name, maxMemory/mib) * mib
	}
	return a
}

// checkNames looks at the names of annotations that have the name of a container.
func (r kaiReader) checkNames() {
	for _, name := range r.Sorted {
		container, ok := kaiNamed(name)
		switch {
		case !r.First:
		case ok && !r.hasContainer(container):
			r.refuseAnnotation(name, "the pod has no container %s", container)
		case !ok && strings.HasPrefix(name, kaiPrefix) && !written.MatchString(name):
			r.warn("the annotation %s has no effect", name)
		}
	}
}

// kaiNamed returns the container in the name of an annotation.
func kaiNamed(annotation string) (container string, ok bool) {
	rest, ok := strings.CutPrefix(annotation, kaiPrefix)
	if !ok {
		return "", false
	}
	for _, suffix := range []string{kaiRequest, kaiLimit, kaiContainerMode} {
		if container, ok := strings.CutSuffix(rest, suffix); ok {
			return container, true
		}
	}
	return "", false
}

// mode applies an annotation that says how the pods on a GPU share its compute.
func (r kaiReader) mode(request *gpuRequest, name string) {
	mode, ok := r.Annotations[name]
	switch selector := r.attribute("isolation") + " == 'mps'"; {
	case !ok:
	case mode == "sm-sharing" && slices.Contains(request.Selectors, selector):
	case mode == "sm-sharing":
		request.Selectors = append(request.Selectors, selector)
	case mode == "time-slicing":
		r.warn("%s: on GPUs with isolation mps the pods run at the same time and do not take turns", name)
	default:
		r.errs = append(r.errs, field.NotSupported(r.AnnotationPath.Key(name), mode,
			[]string{"sm-sharing", "time-slicing"}))
	}
}
