// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const hamiPriority corev1.ResourceName = "nvidia.com/priority"

const (
	hamiUseType    = "nvidia.com/use-gputype"
	hamiNoUseType  = "nvidia.com/nouse-gputype"
	hamiUseUUID    = "nvidia.com/use-gpuuuid"
	hamiNoUseUUID  = "nvidia.com/nouse-gpuuuid"
	hamiUseIndex   = "nvidia.com/use-gpuindexes"
	hamiNoUseIndex = "nvidia.com/nouse-gpuindexes"
	hamiMode       = "nvidia.com/vgpu-mode"
	hamiNUMA       = "nvidia.com/numa-bind"
	hamiGPUPolicy  = "hami.io/gpu-scheduler-policy"
	hamiNodePolicy = "hami.io/node-scheduler-policy"
)

// hamiNames are the defaults of HAMi's configuration.
var hamiNames = vgpuNames{count: "nvidia.com/gpu", memory: "nvidia.com/gpumem", cores: "nvidia.com/gpucores",
	percentage: "nvidia.com/gpumem-percentage"}

// hamiAnnotations are those that say something about nvidia.com/gpu.
var hamiAnnotations = []string{hamiUseType, hamiNoUseType, hamiUseUUID, hamiNoUseUUID, hamiUseIndex, hamiNoUseIndex,
	hamiMode, hamiNUMA, hamiGPUPolicy, hamiNodePolicy}

// hami is HAMi. nvidia.com/gpu alone is not converted: it is the extended resource of the class of whole GPUs. By
// another name it is.
// CUDA_DEVICE_MEMORY_LIMIT and CUDA_DEVICE_SM_LIMIT are set by the driver.
var hami = family{
	Name: "hami",
	Resources: []corev1.ResourceName{hamiNames.count, hamiNames.memory, hamiNames.percentage, hamiNames.cores,
		hamiPriority},
	Foreign: regexp.MustCompile(`^hami\.io/|^nvidia\.com/.*(gpu|numa)`),
	Known:   hamiAnnotations,
	read:    func(r *reader) *gpuRequest { return hamiReader{vgpuReader{r}}.read() },
}

// hamiReader reads the resources and annotations of HAMi.
type hamiReader struct{ vgpuReader }

func (r hamiReader) read() *gpuRequest {
	if !hamiNames.asked(r.reader) && !r.has(hamiPriority) && !r.Renamed[hamiNames.count] &&
		!slices.ContainsFunc(hamiAnnotations, r.annotated) {
		return nil
	}
	request := r.share(hamiNames)
	if request == nil {
		return nil
	}
	r.types(request)
	r.lists(request, hamiLists)
	r.mode(hamiMode, request)
	r.numa(request)
	r.policies(request)
	if r.has(hamiPriority) {
		priority := r.amount(hamiPriority, 1, "0 (high) or 1 (low)")
		r.warn("%s is passed to the container as CUDA_TASK_PRIORITY; only HAMi's own library reads it", hamiPriority)
		request.Environment = map[string]string{"CUDA_TASK_PRIORITY": strconv.FormatInt(priority, 10)}
	}
	return request
}

// types applies the lists of models.
func (r vgpuReader) types(request *gpuRequest) {
	const accepted = "parts of the names of models"
	if use := r.list(hamiUseType, graphic, accepted); use != nil {
		request.Selectors = append(request.Selectors, r.models(use))
	}
	if avoid := r.list(hamiNoUseType, graphic, accepted); avoid != nil {
		request.Selectors = append(request.Selectors, "!("+r.models(avoid)+")")
	}
}

// gpuList is an annotation with the GPUs to use, or not to use.
type gpuList struct{ annotation, not, attribute string }

var hamiLists = []gpuList{{hamiUseUUID, "", "uuid"}, {hamiNoUseUUID, "!", "uuid"}, {hamiUseIndex, "", "index"},
	{hamiNoUseIndex, "!", "index"}}

// lists applies lists of UUIDs and indexes.
func (r vgpuReader) lists(request *gpuRequest, lists []gpuList) {
	for _, l := range lists {
		valid, accepted := uuidCharacter, "UUIDs of GPUs"
		if l.attribute == "index" {
			valid, accepted = digit, "indexes of GPUs"
		}
		entries := r.list(l.annotation, valid, accepted)
		if entries == nil {
			continue
		}
		values := quoted(entries)
		if l.attribute == "index" {
			if values = r.indexes(l.annotation, entries); values == "" {
				continue
			}
		}
		request.Selectors = append(request.Selectors, l.not+"("+r.attribute(l.attribute)+" in "+values+")")
	}
}

// indexes returns the entries as a list of numbers, without leading zeros.
func (r vgpuReader) indexes(annotation string, entries []string) string {
	var all []string
	for _, e := range entries {
		n, err := strconv.ParseUint(e, 10, 16)
		if err != nil {
			r.refuseAnnotation(annotation, "must be a list of indexes of GPUs")
			return ""
		}
		all = append(all, strconv.FormatUint(n, 10))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// numa puts the GPUs of the container on one NUMA node.
func (r hamiReader) numa(request *gpuRequest) {
	if r.annotatedBool(hamiNUMA) && request.Count > 1 {
		request.MatchAttribute = "resource.kubernetes.io/numaNode"
	}
}

// policies handles the annotations that choose the order of GPUs and nodes.
func (r hamiReader) policies(request *gpuRequest) {
	if strings.Contains(r.Annotations[hamiGPUPolicy], "mutex") && !request.whole() {
		r.refuseAnnotation(hamiGPUPolicy, "a claim cannot ask for a share of a GPU that nobody uses yet: ask for a "+
			"whole GPU, or remove mutex")
	}
	for _, name := range []string{hamiGPUPolicy, hamiNodePolicy} {
		if r.annotated(name) {
			r.warn("%s chooses the node only if the scheduler asks the controller for scores "+
				"(docs/operate/placement.md); on the node, the first GPU with room is taken", name)
		}
	}
}
