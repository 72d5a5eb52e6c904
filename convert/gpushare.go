// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"regexp"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	aliyunMemory corev1.ResourceName = "aliyun.com/gpu-mem"
	aliyunCore   corev1.ResourceName = "aliyun.com/gpu-core.percentage"
	// aliyunCount is a resource in gpushare's samples and a label of the pod in Alibaba's documentation.
	aliyunCount corev1.ResourceName = "aliyun.com/gpu-count"
)

// gpuShare is Aliyun's gpushare and cGPU. converter.MemoryUnit is the unit of aliyun.com/gpu-mem, which their
// administrator chooses. The index and the memory of the GPU, ALIYUN_COM_GPU_MEM_IDX and ALIYUN_COM_GPU_MEM_DEV, are
// not set: a claim is made before a GPU is chosen.
var gpuShare = family{
	Name:      "gpushare",
	Resources: []corev1.ResourceName{aliyunMemory, aliyunCore, aliyunCount},
	Foreign:   regexp.MustCompile(`^aliyun\.com/.*gpu|gpushare|^cgpu`),
	read:      func(r *reader) *gpuRequest { return aliyunReader{r}.read() },
}

// aliyunReader reads the resources of gpushare.
type aliyunReader struct{ *reader }

func (r aliyunReader) read() *gpuRequest {
	memory := r.memory(aliyunMemory, r.MemoryUnit)
	cores := r.amount(aliyunCore, 100, "1/100 of a GPU")
	count := r.amount(aliyunCount, maxGPUs, "1 GPU")
	if len(r.errs) > 0 || memory == 0 && cores == 0 && count == 0 {
		return nil
	}
	if memory == 0 {
		r.refuse(r.firstOf(aliyunMemory, aliyunCore, aliyunCount), "needs %s", aliyunMemory)
	}
	if cores%5 != 0 {
		r.refuse(aliyunCore, "must be a multiple of 5")
	}
	count = r.gpus(count)
	each := memory / count
	switch {
	case each%r.MemoryUnit != 0:
		r.refuse(aliyunMemory, "must be a multiple of the number of GPUs, %d", count)
	case count > 1 && cores != 0:
		r.refuse(aliyunCore, "must not be used with several GPUs")
	}
	r.warn("%s: the driver enforces the memory, unless the node has isolation none; gpushare does not", aliyunMemory)
	r.perPod(aliyunMemory)
	r.warn("ALIYUN_COM_GPU_MEM_DEV and ALIYUN_COM_GPU_MEM_IDX are not set: the GPU is chosen later")
	return &gpuRequest{Count: count, Memory: each, Cores: cores, Environment: r.environment(each)}
}

// gpus returns the number of GPUs. resource is what the container says; the label of the pod says it too.
func (r aliyunReader) gpus(resource int64) int64 {
	count := max(1, resource)
	label, ok := r.Pod.Labels[string(aliyunCount)]
	if !ok {
		return count
	}
	n, err := strconv.ParseInt(label, 10, 64)
	path := field.NewPath("metadata", "labels").Key(string(aliyunCount))
	switch {
	case err != nil || n < 1 || n > maxGPUs:
		r.errs = append(r.errs, field.Invalid(path, label, "must be a whole number from 1 to "+strconv.Itoa(maxGPUs)))
		return count
	case resource != 0 && resource != n:
		r.errs = append(r.errs, field.Invalid(path, label, "must be what the container says"))
	}
	return n
}

// environment returns the variables that say how much memory the container and the pod have.
func (r aliyunReader) environment(each int64) map[string]string {
	var pod int64
	for i := range r.Pod.Spec.Containers {
		q := limits(&r.Pod.Spec.Containers[i])[aliyunMemory]
		pod += min(max(q.Value(), 0), maxMemory)
	}
	pod = max(pod, each/r.MemoryUnit) // an init container
	unit := "GiB"
	if r.MemoryUnit == mib {
		unit = "MiB"
	}
	return map[string]string{
		"ALIYUN_COM_GPU_MEM_CONTAINER": strconv.FormatInt(each/r.MemoryUnit, 10),
		"ALIYUN_COM_GPU_MEM_POD":       strconv.FormatInt(pod, 10),
		"ALIYUN_COM_GPU_MEM_UNIT":      unit,
	}
}
