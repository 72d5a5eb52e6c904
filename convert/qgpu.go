// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	qgpuCore   corev1.ResourceName = "tke.cloud.tencent.com/qgpu-core"
	qgpuMemory corev1.ResourceName = "tke.cloud.tencent.com/qgpu-memory"
	qgpuGreedy corev1.ResourceName = "tke.cloud.tencent.com/qgpu-core-greedy"
	// qgpuClass says that a pod is online (it comes first) or offline (it gets what is left).
	qgpuClass = "tke.cloud.tencent.com/app-class"
)

// elasticDialect is a pair of names with units.
type elasticDialect struct {
	core, memory corev1.ResourceName
	unit         int64 // of memory
	step         int64 // of core below 100
}

// elasticDialects are those that containers use. qGPU divides in steps of 5 percent; Elastic GPU's own names count
// memory in MiB.
var elasticDialects = []elasticDialect{
	{qgpuCore, qgpuMemory, gib, 5},
	{"elasticgpu.io/qgpu-core", "elasticgpu.io/qgpu-memory", gib, 5},
	{"elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory", mib, 1},
	{"elasticgpu.com/gpu-core", "elasticgpu.com/gpu-memory", mib, 1},
}

// elasticClaimPrefixes are followed by the name of a container. The value is the name of an ElasticGPUClaim.
var elasticClaimPrefixes = []string{"elasticgpu.io/egpuc-", "egpuc.elasticgpu.io/"}

// qgpu is Tencent's qGPU and Elastic GPU, which defines qGPU's names too.
var qgpu = family{
	Name: "qgpu",
	Resources: []corev1.ResourceName{qgpuCore, qgpuMemory, qgpuGreedy, "elasticgpu.io/qgpu-core",
		"elasticgpu.io/qgpu-memory", "elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory", "elasticgpu.com/gpu-core",
		"elasticgpu.com/gpu-memory"},
	AnnotationPrefixes: elasticClaimPrefixes,
	Foreign:            regexp.MustCompile(`^tke\.cloud\.tencent\.com/.*gpu|elasticgpu\.(io|com)/`),
	read:               func(r *reader) *gpuRequest { return elasticReader{r}.read() },
}

// elasticReader reads the resources and annotations of qGPU and Elastic GPU.
type elasticReader struct{ *reader }

func (r elasticReader) read() *gpuRequest {
	request := r.resources()
	claim := r.existingClaim()
	if claim == "" {
		return request
	}
	if request != nil {
		r.errs = append(r.errs, field.Forbidden(r.Path, "the container has an ElasticGPUClaim; remove the "+
			"resources or the annotation"))
	}
	return &gpuRequest{Claim: claim}
}

// existingClaim returns the name of the container's ElasticGPUClaim, which is that of a ResourceClaim here.
func (r elasticReader) existingClaim() string {
	var claim string
	for _, prefix := range elasticClaimPrefixes {
		if r.First {
			r.checkClaims(prefix)
		}
		if value, ok := r.Annotations[prefix+r.Name]; ok {
			if problems := validation.IsDNS1123Subdomain(value); len(problems) > 0 {
				r.refuseAnnotation(prefix+r.Name, "must be the name of a ResourceClaim: %s", problems[0])
			}
			claim = value
		}
	}
	return claim
}

// checkClaims refuses annotations for containers that the pod does not have.
func (r elasticReader) checkClaims(prefix string) {
	for _, name := range r.Sorted {
		if container, ok := strings.CutPrefix(name, prefix); ok && !r.hasContainer(container) {
			r.refuseAnnotation(name, "the pod has no container %s", container)
		}
	}
}

// resources returns what the resources of the container ask for.
func (r elasticReader) resources() *gpuRequest {
	var request *gpuRequest
	for _, d := range elasticDialects {
		one := r.share(d)
		if one == nil {
			continue
		}
		if request != nil {
			r.refuse(r.firstOf(d.core, d.memory), "the container already asks for a GPU by another name; keep one")
		}
		request = one
	}
	return request
}

func (r elasticReader) share(d elasticDialect) *gpuRequest {
	cores := r.amount(d.core, 100*maxGPUs, "1/100 of a GPU")
	memory := r.memory(d.memory, d.unit)
	var greedy int64
	if d.core == qgpuCore {
		greedy = r.amount(qgpuGreedy, 100, "1/100 of a GPU")
	}
	switch {
	case len(r.errs) > 0 || cores == 0 && memory == 0 && greedy == 0:
		return nil
	case greedy != 0:
		return r.offline(cores, memory)
	case cores >= 100:
		return r.gpus(d, cores, memory)
	case cores%d.step != 0:
		r.refuse(d.core, "must be a multiple of %d", d.step)
	case cores != 0 && memory == 0:
		r.warn("%s is not there: the container gets all memory of its GPU, which nobody else can use then", d.memory)
	}
	if r.Annotations[qgpuClass] == "online" {
		r.warn("%s: online pods do not come before others on their GPU", qgpuClass)
	}
	return &gpuRequest{Count: 1, Memory: memory, Cores: cores}
}

// gpus returns the request for whole GPUs, or for equal shares of several.
func (r elasticReader) gpus(d elasticDialect, cores, memory int64) *gpuRequest {
	count := (cores + 99) / 100
	if cores%100 == 0 {
		if memory != 0 {
			r.warn("%s is ignored with whole GPUs: the container gets all memory of its GPUs", d.memory)
		}
		return &gpuRequest{Count: count}
	}
	each := memory / d.unit / count * d.unit
	if each == 0 {
		r.refuse(r.firstOf(d.memory, d.core), "%s must be at least %d for shares of %d GPUs", d.memory, count, count)
	}
	if cores%count != 0 || each*count != memory {
		r.warn("the amounts of each of the %d GPUs are rounded down, as qGPU does", count)
	}
	return &gpuRequest{Count: count, Memory: each, Cores: cores / count}
}

// offline returns the request of a pod that only uses what others leave.
func (r elasticReader) offline(cores, memory int64) *gpuRequest {
	if cores != 0 {
		r.refuse(qgpuGreedy, "must not be combined with %s", qgpuCore)
	}
	if memory == 0 {
		r.refuse(qgpuGreedy, "needs %s", qgpuMemory)
	}
	r.warn("%s: there are no priorities on a GPU; the container is not limited and shares the multiprocessors with "+
		"all others", qgpuGreedy)
	return &gpuRequest{Count: 1, Memory: memory}
}
