// SPDX-License-Identifier: Apache-2.0

package why

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/pkg/nearest"
)

// noteMistakes notes the mistakes in alternatives that the workload gets nowhere, although it gets a later one.
func (q *question) noteMistakes(r *Answer, placements []schedule.Placement) {
	for i, claim := range q.Workload.Claims {
		first := map[string]bool{} // alternatives that some node gives
		for _, found := range placements {
			for _, d := range found.Results[i].Devices.Results {
				first[d.Request] = true
			}
		}
		number := 0
		for _, alternatives := range cluster.Requests(&claim.Spec) {
			isRanked := schedule.Ranked(alternatives)
			given := slices.IndexFunc(alternatives, func(s cluster.Subrequest) bool { return first[s.Name] })
			for j, s := range alternatives {
				if number++; isRanked || j >= given || q.ClassByName[*s.Class] == nil {
					continue
				}
				candidates, err := q.Compare(i, number-1, q.Groups, q.Limits.Candidates)
				if err != nil {
					return // it is only a note
				}
				for _, text := range advice.Mistakes(q.Question, i, number-1, candidates) {
					label := q.Workload.Origins[i].Label
					r.Notes = append(r.Notes, fmt.Sprintf("request %s of %s: %s", s.Name, label, text))
				}
			}
		}
	}
}

// mistakeCause names the mistakes in the selectors of the first request that has any. problem is the error of the
// allocator. It returns "" if there are none.
func (e *explanation) mistakeCause(problem error) string {
	for i, claim := range e.Workload.Claims {
		for j, p := range cluster.Subrequests(&claim.Spec) {
			var texts []string
			of := e.candidates[schedule.RequestID{Claim: i, Number: j}]
			for _, text := range advice.Mistakes(e.Question, i, j, of) {
				if !slices.Contains(texts, text) {
					texts = append(texts, text)
				}
			}
			if len(texts) > 0 {
				label := e.Workload.Origins[i].Label
				text := fmt.Sprintf("request %s of %s: %s", p.Name, label, strings.Join(texts, "; "))
				if problem != nil && !errors.Is(problem, schedule.ErrLimit) {
					text += " (the selector fails on devices of the class, and then the scheduler gives up on the pod)"
				}
				return text
			}
		}
	}
	return ""
}

// missingClass says that the class of a subrequest does not exist, and which was likely meant.
func (e *explanation) missingClass(p cluster.Subrequest, of schedule.Origin) string {
	if resource := of.Extended[p.Name]; resource != "" {
		return e.missingResource(resource)
	}
	return fmt.Sprintf("request %s of %s asks for the class %s, which does not exist%s", p.Name, of.Label, *p.Class,
		e.classHint(*p.Class))
}

// classHint ends a sentence about a class without devices: with the nearest class of partitions that nodes offer, what
// nodes need for virtual machines or remote GPUs, or the class that was likely meant.
func (e *explanation) classHint(name string) string {
	if !nearest.Profile(name) {
		if e.ClassByName[name] != nil && (strings.HasPrefix(name, "vfio.") || strings.HasPrefix(name, "vgpu.")) {
			needs := "an IOMMU and the driver vfio-pci"
			if strings.HasPrefix(name, "vgpu.") {
				needs = "NVIDIA's driver for hosts of vGPUs"
			}
			return "; an administrator offers GPUs to virtual machines (virtualMachines.enabled of the chart), a " +
				"node needs " + needs + ", and the command check says what is missing"
		}
		if _, isRemote := remote.Local(name); isRemote && e.ClassByName[name] != nil {
			return "; server pods offer GPUs over the network to nodes with the label " + remote.ClientLabel + "=true"
		}
		if e.ClassByName[name] != nil {
			return ""
		}
		return nearest.Hint(name, slices.Sorted(maps.Keys(e.ClassByName)))
	}
	for _, near := range nearest.Profiles(name, slices.Sorted(maps.Keys(e.ClassByName))) {
		if e.offered(e.ClassByName[near]) {
			return fmt.Sprintf("; the nearest that is offered is %s", near)
		}
	}
	return ""
}

// offered reports whether a node has a device of the class.
func (q *question) offered(class *resourceapi.DeviceClass) bool {
	for _, slice := range q.Slices {
		for i := range slice.Spec.Devices {
			if q.Context.Err() != nil {
				return false
			}
			if schedule.ClassAccepts(q.Context, class, slice.Spec.Driver, &slice.Spec.Devices[i]) {
				return true
			}
		}
	}
	return false
}

// older are beginnings of the names of resources of older sharing systems, which the controller converts.
var older = map[string]string{"nvidia.com/gpumem": "HAMi", "nvidia.com/gpucores": "HAMi", "nvidia.com/priority": "HAMi",
	"volcano.sh/": "Volcano", "aliyun.com/gpu-": "gpushare", "tencent.com/vcuda-": "gpu-manager",
	"tke.cloud.tencent.com/qgpu-": "qGPU", "elasticgpu.": "qGPU", "resource.nvidia.com/tflops": "the conversion"}

// missingResource says that nothing offers an extended resource, and which was likely meant.
func (e *explanation) missingResource(name corev1.ResourceName) string {
	for prefix, system := range older {
		if strings.HasPrefix(string(name), prefix) {
			return fmt.Sprintf("%s is a resource of %s: label the namespace gpu.nvidia.com/convert=on, and create the "+
				"pod again; it is then converted to a claim (docs/migrate/old-manifests.md)", name, system)
		}
	}
	text := fmt.Sprintf("no node offers %s", name)
	offered := e.offeredResources()
	if class := e.ClassOf(name); class != nil && slices.Contains(offered, string(name)) {
		return fmt.Sprintf("%s: of the classes with this extendedResourceName the newest counts, %s, and no device is "+
			"of it", text, class.Name)
	}
	if nearest.Profile(string(name)) {
		if near := nearest.Profiles(string(name), offered); len(near) > 0 {
			return fmt.Sprintf("%s; the nearest that is offered is %s", text, near[0])
		}
	}
	if hint := nearest.Hint(string(name), offered); hint != "" || len(offered) == 0 {
		return text + hint
	}
	return text + "; offered are " + strings.Join(offered[:min(len(offered), selectors.ShownTexts)], ", ")
}

// offeredResources returns the extended resources of classes with devices, and those of device plugins, sorted.
func (e *explanation) offeredResources() []string {
	found := map[string]bool{}
	for _, class := range e.Classes {
		if name := class.Spec.ExtendedResourceName; name != nil && e.offered(class) {
			found[*name] = true
		}
	}
	for _, node := range e.AllNodes {
		for name := range node.Status.Allocatable {
			if schedule.IsExtended(name) && schedule.FromPlugin(node, name) {
				found[string(name)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// unofferedResource returns the cause if the pod requests an extended resource that no class and no device plugin has.
func (e *explanation) unofferedResource() string {
	if e.Workload.Pod == nil {
		return ""
	}
	requests := schedule.RequestsOf(e.Workload.Pod)
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		amount := requests[name]
		if !schedule.IsExtended(name) || amount.IsZero() {
			continue
		}
		class := e.ClassOf(name)
		if class != nil && e.offered(class) || slices.ContainsFunc(e.AllNodes, func(n *corev1.Node) bool {
			return schedule.FromPlugin(n, name)
		}) {
			continue
		}
		return e.missingResource(name)
	}
	return ""
}
