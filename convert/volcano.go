// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"regexp"

	corev1 "k8s.io/api/core/v1"
)

var (
	volcanoNames = vgpuNames{count: "volcano.sh/vgpu-number", memory: "volcano.sh/vgpu-memory",
		cores: "volcano.sh/vgpu-cores", percentage: "volcano.sh/vgpu-memory-percentage"}
	// volcanoShareNames are those of Volcano's older GPU sharing, which only knows memory.
	volcanoShareNames = vgpuNames{count: "volcano.sh/gpu-number", memory: "volcano.sh/gpu-memory"}
)

const (
	volcanoMode      = "volcano.sh/vgpu-mode"
	volcanoUseUUID   = "volcano.sh/vgpu-use-gpuuuid"
	volcanoNoUseUUID = "volcano.sh/vgpu-nouse-gpuuuid"
)

// volcano is Volcano's vGPU, and its older GPU sharing. Memory is in MiB, whatever unit Volcano is configured for.
var volcano = family{
	Name: "volcano",
	Resources: []corev1.ResourceName{volcanoNames.count, volcanoNames.memory, volcanoNames.percentage,
		volcanoNames.cores, volcanoShareNames.count, volcanoShareNames.memory},
	Foreign: regexp.MustCompile(`^volcano\.sh/.*gpu|^nvidia\.com/.*gpu`),
	Known:   []string{volcanoMode, volcanoUseUUID, volcanoNoUseUUID, hamiUseType, hamiNoUseType},
	read:    func(r *reader) *gpuRequest { return vgpuReader{r}.volcano() },
}

func (r vgpuReader) volcano() *gpuRequest {
	request, older := r.share(volcanoNames), r.share(volcanoShareNames)
	if request != nil && older != nil {
		r.refuse(r.firstOf(volcanoShareNames.count, volcanoShareNames.memory), "the container already asks for %s; "+
			"keep one", r.firstOf(volcanoNames.count, volcanoNames.memory, volcanoNames.percentage, volcanoNames.cores))
	}
	if request == nil {
		request = older
	}
	if request == nil {
		return nil
	}
	r.mode(volcanoMode, request)
	r.types(request) // by the same names
	r.lists(request, []gpuList{{volcanoUseUUID, "", "uuid"}, {volcanoNoUseUUID, "!", "uuid"}})
	r.perPod(volcanoShareNames.memory)
	return request
}
