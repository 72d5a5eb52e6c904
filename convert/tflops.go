// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// tflopsResource is this driver's own name, after an idea of Elastic GPU.
const tflopsResource corev1.ResourceName = "resource.nvidia.com/tflops"

// maxTFLOPS is more than a GPU has.
const maxTFLOPS = 1_000_000

const (
	fusionPrefix      = "tensor-fusion.ai/"
	fusionTFLOPS      = "tensor-fusion.ai/tflops-request"
	fusionTFLOPSLimit = "tensor-fusion.ai/tflops-limit"
	fusionMemory      = "tensor-fusion.ai/vram-request"
	fusionMemoryLimit = "tensor-fusion.ai/vram-limit"
	fusionPercent     = "tensor-fusion.ai/compute-percent-request"
	fusionWhole       = "tensor-fusion.ai/dedicated-gpu"
	fusionCount       = "tensor-fusion.ai/gpu-count"
	fusionModel       = "tensor-fusion.ai/gpu-model"
	fusionVendor      = "tensor-fusion.ai/vendor"
	fusionContainers  = "tensor-fusion.ai/inject-container"
	fusionLocal       = "tensor-fusion.ai/is-local-gpu"
)

// fusionRefused are annotations that a claim cannot say, with what to do.
var fusionRefused = map[string]string{
	"tensor-fusion.ai/container-gpu-count": "write a claim with a request for each container",
	"tensor-fusion.ai/gpu-indices":         "write a claim with a selector on index",
	"tensor-fusion.ai/partition-id":        "write a claim with the class of the partition's profile",
}

// fusionIgnored are annotations that have no meaning here.
var fusionIgnored = []string{"tensor-fusion.ai/gpupool", "tensor-fusion.ai/qos", "tensor-fusion.ai/isolation"}

// tflops is a request for compute in TFLOP/s, of this driver and of Tensor Fusion. The figure of a GPU is its attribute
// peakCompute. Without an amount of memory, the container gets as much of the memory as of the compute.
var tflops = family{
	Name:      "tflops",
	Resources: []corev1.ResourceName{tflopsResource},
	// All of them, so that none is passed over.
	AnnotationPrefixes: []string{fusionPrefix},
	read: func(r *reader) *gpuRequest {
		amount := r.amount(tflopsResource, maxTFLOPS, "1 TFLOP/s")
		fusion := fusionReader{r}.read()
		if amount == 0 {
			return fusion
		}
		if fusion != nil {
			r.refuse(tflopsResource, "must not be combined with annotations of tensor-fusion.ai")
		}
		return &gpuRequest{Count: 1, TFLOPS: amount}
	},
}

// fusionReader reads the annotations of Tensor Fusion.
type fusionReader struct{ *reader }

// read returns what Tensor Fusion's annotations ask for.
func (r fusionReader) read() *gpuRequest {
	if !r.asks() || !r.concerns() {
		return nil
	}
	request := &gpuRequest{Count: max(1, r.annotatedNumber(fusionCount, maxGPUs))}
	if !r.annotatedBool(fusionWhole) {
		if r.share(request); request.whole() {
			return nil // it says that the GPU is not dedicated, and no more
		}
	}
	r.selectGPU(request)
	for _, name := range r.Sorted {
		if instead, ok := fusionRefused[name]; ok {
			r.refuseAnnotation(name, "cannot be converted: %s", instead)
		}
		if slices.Contains(fusionIgnored, name) {
			r.warn("%s has no effect", name)
		}
	}
	return request
}

// fusionKnown are the annotations that have a meaning here, or have none without harm.
var fusionKnown = slices.Concat(fusionIgnored, []string{fusionTFLOPS, fusionTFLOPSLimit, fusionMemory,
	fusionMemoryLimit, fusionPercent, fusionWhole, fusionCount, fusionModel, fusionVendor, fusionContainers,
	fusionLocal})

// asks reports whether annotations of Tensor Fusion say how much of a GPU the pod gets. It refuses a pod that has
// only others: it would start without a GPU.
func (r fusionReader) asks() bool {
	asks, any := false, ""
	for _, name := range r.Sorted {
		_, refused := fusionRefused[name]
		switch {
		case !strings.HasPrefix(name, fusionPrefix):
			continue
		case slices.Contains([]string{fusionTFLOPS, fusionMemory, fusionPercent, fusionWhole}, name):
			asks = true
		case !slices.Contains(fusionKnown, name) && !refused && r.First:
			r.warn("%s has no effect", name)
		}
		any = name
	}
	if any != "" && !asks && r.First && len(r.errs) == 0 {
		r.refuseAnnotation(any, "needs one of %s, %s, %s, %s", fusionTFLOPS, fusionMemory, fusionPercent, fusionWhole)
	}
	return asks
}

// concerns reports whether the annotations are for the container.
func (r fusionReader) concerns() bool {
	value, ok := r.Annotations[fusionContainers]
	if !ok {
		if r.First && r.Containers > 1 {
			r.errs = append(r.errs, field.Required(r.AnnotationPath.Key(fusionContainers),
				"names the containers that get a GPU, if the pod has several"))
		}
		return r.First
	}
	if n := strings.Count(value, ","); n >= maxContainers {
		r.refuseAnnotation(fusionContainers, "names %d containers; a pod may have %d", n+1, maxContainers)
		return false
	}
	names := strings.Split(value, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
		if r.First && !r.hasContainer(names[i]) {
			r.refuseAnnotation(fusionContainers, "the pod has no container %q", names[i])
		}
	}
	return slices.Contains(names, r.Name)
}

// share reads the amounts.
func (r fusionReader) share(request *gpuRequest) {
	if r.annotated(fusionTFLOPS) && r.annotated(fusionPercent) {
		r.refuseAnnotation(fusionPercent, "must not be combined with %s", fusionTFLOPS)
	}
	request.TFLOPS = r.tflops(fusionTFLOPS)
	request.Cores = r.annotatedNumber(fusionPercent, 100)
	if limit := r.tflops(fusionTFLOPSLimit); limit != 0 && limit != request.TFLOPS {
		r.warn("%s has no effect: the request is the limit", fusionTFLOPSLimit)
	}
	if r.annotated(fusionMemory) {
		request.Memory = r.annotatedMemory(fusionMemory)
	}
	if r.annotated(fusionMemoryLimit) && r.annotatedMemory(fusionMemoryLimit) != request.Memory {
		r.refuseAnnotation(fusionMemoryLimit, "must be what %s says: a claim has one amount of memory, which is the "+
			"limit", fusionMemory)
	}
}

// selectGPU reads what kind of GPU it must be.
func (r fusionReader) selectGPU(request *gpuRequest) {
	if models := r.list(fusionModel, graphic, "models"); models != nil {
		request.Selectors = append(request.Selectors, r.models(models))
	}
	if vendor, ok := r.Annotations[fusionVendor]; ok && !strings.EqualFold(vendor, "nvidia") {
		r.refuseAnnotation(fusionVendor, "must be NVIDIA")
	}
	if r.annotated(fusionLocal) && !r.annotatedBool(fusionLocal) {
		r.warn("%s: the GPU is on the pod's own node; for one of another node, ask for the class "+
			"remote.gpu.nvidia.com", fusionLocal)
	}
}

// tflops returns the value of an annotation, rounded up to whole TFLOP/s; 0: the pod does not have it.
func (r fusionReader) tflops(name string) int64 {
	value, ok := r.Annotations[name]
	if !ok {
		return 0
	}
	q, err := resource.ParseQuantity(value)
	if err != nil || q.Sign() <= 0 || q.CmpInt64(maxTFLOPS) > 0 {
		r.refuseAnnotation(name, "must be a number of TFLOP/s such as 20 or 71200m, more than 0 and at most %d",
			maxTFLOPS)
		return 0
	}
	return q.Value() // Value rounds up
}
