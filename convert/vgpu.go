// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// vgpuNames are the resources of HAMi and of what was made from it.
type vgpuNames struct{ count, memory, percentage, cores corev1.ResourceName }

// asked reports whether the container asks for a part of a GPU.
func (n vgpuNames) asked(r *reader) bool {
	return r.has(n.memory) || r.has(n.percentage) || r.has(n.cores)
}

// vgpuReader reads what HAMi and Volcano have in common.
type vgpuReader struct{ *reader }

// share returns what the resources ask for. Memory is in MiB. A part without a count is one of one GPU.
func (r vgpuReader) share(n vgpuNames) *gpuRequest {
	count := r.amount(n.count, maxGPUs, "1 GPU")
	memory := r.memory(n.memory, mib)
	percentage := r.amount(n.percentage, 100, "1/100 of a GPU's memory")
	cores := r.amount(n.cores, 100, "1/100 of a GPU")
	part := memory != 0 || percentage != 0 || cores != 0
	switch {
	case len(r.errs) > 0 || !part && count == 0:
		return nil
	case !r.has(n.count):
		count = 1
	case count == 0:
		r.refuse(n.count, "must be at least 1 if the container asks for a part of a GPU")
	}
	request := &gpuRequest{Count: count, Memory: memory, Cores: cores}
	switch {
	case memory != 0 && percentage != 0:
		r.warn("%s is ignored beside %s, as the older system does", n.percentage, n.memory)
	case memory == 0 && percentage != 0 && percentage < 100:
		request.MemoryShare = float64(percentage) / 100
	case memory == 0 && r.has(n.percentage) && percentage == 0:
		r.refuse(n.percentage, "must be from 1 to 100")
	}
	if cores == 100 && (request.Memory != 0 || request.MemoryShare != 0) {
		r.warn("%s: others that ask for memory only can be on the same GPU; ask for all of its memory to be alone",
			n.cores)
	}
	return request
}

// mode applies the annotation that chooses what enforces the limits.
func (r vgpuReader) mode(name string, request *gpuRequest) {
	mode, ok := r.Annotations[name]
	if !ok {
		return
	}
	modes := strings.Split(mode, ",")
	for i := range modes {
		modes[i] = strings.TrimSpace(modes[i])
	}
	switch {
	case slices.Contains(modes, "hami-core"):
		r.warn("%s: the administrator of the node chooses what enforces the limits; the attribute isolation says it",
			name)
	case slices.Contains(modes, "mps"):
		request.Selectors = append(request.Selectors, r.attribute("isolation")+" == 'mps'")
	case slices.Contains(modes, "mig"):
		r.refuseAnnotation(name, "a container that gets a partition needs a claim with the class of its profile, for "+
			"example mig-1g.10gb.nvidia.com: write that claim, and remove the resources and the annotation")
	default:
		r.refuseAnnotation(name, "must be hami-core, mps or mig")
	}
}

// models returns a selector for GPUs whose model contains one of the texts, in upper or lower case. HAMi's names of
// models may begin with "NVIDIA-".
func (r *reader) models(texts []string) string {
	model := fmt.Sprintf("('NVIDIA-' + %s).upperAscii()", r.attribute("productName"))
	var all []string
	for _, t := range texts {
		all = append(all, fmt.Sprintf("%s.contains(%q)", model, strings.ToUpper(t)))
	}
	return strings.Join(all, " || ")
}
