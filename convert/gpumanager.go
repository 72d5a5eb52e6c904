// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"regexp"

	corev1 "k8s.io/api/core/v1"
)

const (
	vcudaCore   corev1.ResourceName = "tencent.com/vcuda-core"
	vcudaMemory corev1.ResourceName = "tencent.com/vcuda-memory"
	vcudaLimit                      = "tencent.com/vcuda-core-limit"
	vcudaBlock                      = 256 * mib
)

// gpuManager is tkestack/gpu-manager with vcuda-controller. vcuda-core are hundredths of a GPU, vcuda-memory are blocks
// of 256 MiB.
var gpuManager = family{
	Name:      "gpu-manager",
	Resources: []corev1.ResourceName{vcudaCore, vcudaMemory},
	Foreign:   regexp.MustCompile(`^tencent\.com/.*(gpu|vcuda)`),
	Known:     []string{vcudaLimit},
	read:      func(r *reader) *gpuRequest { return vcudaReader{r}.read() },
}

// vcudaReader reads the resources of gpu-manager.
type vcudaReader struct{ *reader }

func (r vcudaReader) read() *gpuRequest {
	cores := r.amount(vcudaCore, 100*maxGPUs, "1/100 of a GPU")
	memory := r.memory(vcudaMemory, vcudaBlock)
	if len(r.errs) > 0 || cores == 0 && memory == 0 {
		return nil
	}
	if cores >= 100 {
		return r.gpus(cores)
	}
	switch {
	case cores == 0:
		r.refuse(vcudaCore, "must be at least 1 if the container asks for %s", vcudaMemory)
	case memory == 0:
		r.refuse(vcudaMemory, "must be at least 1 if %s is less than 100", vcudaCore)
	}
	limit := r.annotatedNumber(vcudaLimit, 100)
	if limit != 0 && limit < cores {
		r.refuseAnnotation(vcudaLimit, "must be at least the container's %s, %d", vcudaCore, cores)
	}
	if limit > cores {
		r.warn("%s: the container may always use %d percent; gpu-manager gives back what is above %d percent when "+
			"others need it", vcudaLimit, limit, cores)
	}
	request := &gpuRequest{Count: 1, Memory: memory, Cores: cores, CoresLimit: limit}
	if limit > cores { // other isolations have no such limit
		request.Selectors = []string{r.attribute("isolation") + " == 'mps'"}
	}
	return request
}

// gpus returns the request for whole GPUs.
func (r vcudaReader) gpus(cores int64) *gpuRequest {
	if cores%100 != 0 {
		r.refuse(vcudaCore, "must be less than 100 or a multiple of 100")
	}
	if r.has(vcudaMemory) {
		r.warn("%s is ignored from 100 %s on, as gpu-manager does: the container gets all memory of its GPUs",
			vcudaMemory, vcudaCore)
	}
	if r.annotated(vcudaLimit) {
		r.warn("%s is ignored from 100 %s on, as gpu-manager does", vcudaLimit, vcudaCore)
	}
	return &gpuRequest{Count: cores / 100, Linked: cores > 100}
}
