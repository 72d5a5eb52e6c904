// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	kaiFraction = "gpu-fraction"
	kaiMemory   = "gpu-memory"
	// The limits of Run:ai, up to which a pod may use what nobody else does.
	kaiFractionLimit = "gpu-fraction-limit"
	kaiMemoryLimit   = "gpu-memory-limit"

	kaiDevices   = "gpu-fraction-num-devices"
	kaiContainer = "gpu-fraction-container-name"
	kaiMode      = "kai.scheduler/gpu-compute-sharing-mode"
	// kaiPrefix, the name of a container and a suffix are the names of the newer annotations.
	kaiPrefix  = "nvidia.com/container."
	kaiRequest = ".gpu-memory.request"
	kaiLimit   = ".gpu-memory.limit"
	wholeGPU   = corev1.ResourceName("nvidia.com/gpu")
)

// kai is the KAI scheduler and Run:ai. A fraction is one of the memory; according to KAI's documentation it does not
// limit compute. One container of a pod has the GPU: the first one, unless an annotation names another.
var kai = family{
	Name:               "kai",
	Annotations:        []string{kaiFraction, kaiMemory},
	AnnotationPrefixes: []string{kaiPrefix},
	Foreign:            regexp.MustCompile(`^gpu-(fraction|memory)|^mps$|^(kai\.scheduler|run\.ai|runai)/`),
	Known: []string{kaiFraction, kaiMemory, kaiFractionLimit, kaiMemoryLimit, kaiDevices, kaiContainer,
		kaiMode},
	read: func(r *reader) *gpuRequest { return kaiReader{r}.read() },
}

// kaiReader reads the annotations of KAI and Run:ai.
type kaiReader struct{ *reader }

func (r kaiReader) read() *gpuRequest {
	request := r.ofContainer()
	if r.concerns() {
		if request != nil && (r.annotated(kaiFraction) || r.annotated(kaiMemory)) {
			r.refuseAnnotation(r.name(), "must not be combined with %s…", kaiPrefix+r.Name)
		} else if request == nil {
			request = r.ofPod()
		}
	}
	if request == nil {
		return nil
	}
	request.Count = max(1, r.annotatedNumber(kaiDevices, maxGPUs))
	r.mode(request)
	if r.has(wholeGPU) {
		r.refuse(wholeGPU, "must not be combined with a part of a GPU")
	}
	return request
}

// name returns the annotation that asks for a share.
func (r kaiReader) name() string {
	if r.annotated(kaiFraction) {
		return kaiFraction
	}
	return kaiMemory
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

// ofPod returns what the annotations without the name of a container ask for.
func (r kaiReader) ofPod() *gpuRequest {
	if r.annotated(kaiFraction) && r.annotated(kaiMemory) {
		r.refuseAnnotation(kaiFraction, "must not be combined with %s", kaiMemory)
		return nil
	}
	if r.annotated(kaiMemory) {
		memory := r.annotatedNumber(kaiMemory, maxMemory/mib)
		if r.annotated(kaiMemoryLimit) && r.annotatedNumber(kaiMemoryLimit, maxMemory/mib) != memory {
			r.refuseLimit(kaiMemoryLimit, kaiMemory)
		}
		return &gpuRequest{Memory: memory * mib}
	}
	value, ok := r.Annotations[kaiFraction]
	if !ok {
		return nil
	}
	share, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || !(share > 0 && share < 1) { // NaN too
		r.refuseAnnotation(kaiFraction, "must be a number greater than 0 and less than 1; for whole GPUs use %s",
			wholeGPU)
		return nil
	}
	if limit, ok := r.Annotations[kaiFractionLimit]; ok {
		if most, err := strconv.ParseFloat(strings.TrimSpace(limit), 64); err != nil || most != share {
			r.refuseLimit(kaiFractionLimit, kaiFraction)
		}
	}
	return &gpuRequest{MemoryShare: share, Environment: map[string]string{
		"GPU_PORTION": strconv.FormatFloat(share, 'f', -1, 64)}}
}

// refuseLimit refuses a limit that is not the request.
func (r kaiReader) refuseLimit(limit, request string) {
	r.refuseAnnotation(limit, "must be %s, %s: a claim has one amount of memory, which is the limit; ask for as much "+
		"as the program may use", request, r.Annotations[request])
}

// ofContainer returns what the annotations with the name of the container ask for.
func (r kaiReader) ofContainer() *gpuRequest {
	if r.First {
		for _, name := range r.Sorted {
			container, ok := kaiNamed(name)
			switch {
			case ok && !r.hasContainer(container):
				r.refuseAnnotation(name, "the pod has no container %s", container)
			case !ok && strings.HasPrefix(name, kaiPrefix):
				r.warn("the annotation %s has no effect", name)
			}
		}
	}
	request, limit := kaiPrefix+r.Name+kaiRequest, kaiPrefix+r.Name+kaiLimit
	if !r.annotated(request) {
		request = limit // KAI takes the limit as the request
	}
	if !r.annotated(request) {
		return nil
	}
	memory := r.annotatedMemory(request)
	if r.annotated(limit) && r.annotatedMemory(limit) != memory {
		r.refuseAnnotation(limit, "must be the request, %s: a claim has one amount of memory, which is the limit",
			r.Annotations[request])
	}
	return &gpuRequest{Memory: memory}
}

// kaiNamed returns the container in the name of an annotation.
func kaiNamed(annotation string) (container string, ok bool) {
	rest, ok := strings.CutPrefix(annotation, kaiPrefix)
	if !ok {
		return "", false
	}
	for _, suffix := range []string{kaiRequest, kaiLimit} {
		if container, ok := strings.CutSuffix(rest, suffix); ok {
			return container, true
		}
	}
	return "", false
}

// mode applies the way in which the pods on a GPU share its compute.
func (r kaiReader) mode(request *gpuRequest) {
	mode, ok := r.Annotations[kaiMode]
	switch {
	case !ok:
	case mode == "sm-sharing":
		request.Selectors = append(request.Selectors, r.attribute("isolation")+" == 'mps'")
	case mode == "time-slicing":
		r.warn("%s: on GPUs with isolation mps the pods run at the same time and do not take turns", kaiMode)
	default:
		r.errs = append(r.errs, field.NotSupported(r.AnnotationPath.Key(kaiMode), mode,
			[]string{"sm-sharing", "time-slicing"}))
	}
}
