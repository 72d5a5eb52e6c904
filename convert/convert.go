// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// family is an older system, or several that use the same names.
type family struct {
	// Name is the name in the chart's values and in the label of converted pods.
	Name string
	// Resources are the extended resources of the family, which are removed from converted containers.
	Resources []corev1.ResourceName
	// Annotations are the annotations of pods that ask for GPUs without any of these resources.
	Annotations []string
	// AnnotationPrefixes are the same for annotations whose names end with the name of a container.
	AnnotationPrefixes []string
	// Foreign matches annotations of the family; those that are not Known and that no scheduler writes are warned of.
	// Nil: Convert does that itself.
	Foreign *regexp.Regexp
	Known   []string
	// read returns what a container asks for, or nil if it asks for nothing. The errors of the reader name the resource
	// or annotation, what is accepted, and what the claim cannot say.
	read func(r *reader) *gpuRequest
}

// families are all families.
var families = []family{gpuManager, gpuShare, hami, kai, qgpu, tflops, volcano}

// Names returns the names of all families, sorted.
func Names() []string {
	var names []string
	for _, f := range families {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	return names
}

// Annotations returns the names, and what names begin with, of the annotations with which pods ask for GPUs.
func Annotations() []string {
	var all []string
	for _, f := range families {
		all = append(append(all, f.Annotations...), f.AnnotationPrefixes...)
	}
	return all
}

// waits reports whether a pod that is not converted waits, because no node has a resource of a family. Otherwise it
// would start without a GPU.
func (c converter) waits(pod *corev1.Pod) bool {
	pod, _ = c.Names.withDefaultNames(pod)
	return slices.ContainsFunc(families, func(f family) bool {
		return slices.Contains(c.Families, f.Name) && f.hasResources(pod)
	})
}

// container is a container of a pod, with what families read.
type container struct {
	Name string
	// First is true for the first container of the pod that is not an init container.
	First bool
	// Resources are its limits, and the requests for which there is no limit.
	Resources map[corev1.ResourceName]resource.Quantity
	Path      *field.Path // of the limits
	// Renamed are those of its resources that have another name in the pod.
	Renamed map[corev1.ResourceName]bool
	// Annotations are those of the pod, and Sorted are their names.
	Annotations    map[string]string
	Sorted         []string
	AnnotationPath *field.Path
	// Containers is the number of containers of the pod, without init containers.
	Containers int
	// Pod is the pod. It must not be changed.
	Pod *corev1.Pod
	// Driver is the name of the driver, for selectors.
	Driver string
	// MemoryUnit is that of the converter.
	MemoryUnit int64
}

// count returns the value of a resource as a whole number; 0: the container does not ask for it.
func (c container) count(name corev1.ResourceName) (int64, *field.Error) {
	q, ok := c.Resources[name]
	if !ok {
		return 0, nil
	}
	n, whole := q.AsInt64()
	if !whole || n < 0 {
		return 0, field.Invalid(c.Path.Key(string(name)), q.String(), "must be a whole number, at least 0")
	}
	return n, nil
}

// gpuRequest is what a container asks for.
type gpuRequest struct {
	// Claim is the name of an existing claim that the container uses. All other fields are empty then.
	Claim string
	// Count is the number of GPUs, at least 1.
	Count int64
	// Linked prefers GPUs that are connected by NVLink.
	Linked bool
	// Memory is in bytes of each GPU. If it is 0, MemoryShare is the part of each GPU's memory, more than 0 and less
	// than 1. If both are 0, the container gets the whole GPU, or what belongs to TFLOPS.
	Memory      int64
	MemoryShare float64
	// Cores are percent of the multiprocessors of each GPU, 1 to 100; 0: no limit.
	Cores int64
	// CoresLimit is the limit of the multiprocessors in percent, if it is not Cores; 0: it is.
	CoresLimit int64
	// TFLOPS is the part of a GPU's peak compute rate that the container asks for, instead of Cores; 0: none.
	TFLOPS int64
	// Selectors are CEL expressions.
	Selectors []string
	// MatchAttribute is an attribute that all GPUs of the request have in common; empty: none.
	MatchAttribute resourceapi.FullyQualifiedName
	// Environment has the variables that programs of the family read.
	Environment map[string]string
	// Warnings say what works differently.
	Warnings []string
}

// whole reports whether the request is for whole GPUs.
func (r gpuRequest) whole() bool {
	return r.Memory == 0 && r.MemoryShare == 0 && r.Cores == 0 && r.TFLOPS == 0
}

func (r gpuRequest) equal(other gpuRequest) bool {
	return r.Claim == other.Claim && r.Count == other.Count && r.Linked == other.Linked && r.Memory == other.Memory &&
		r.MemoryShare == other.MemoryShare && r.Cores == other.Cores && r.CoresLimit == other.CoresLimit &&
		r.TFLOPS == other.TFLOPS && slices.Equal(r.Selectors, other.Selectors) &&
		r.MatchAttribute == other.MatchAttribute && maps.Equal(r.Environment, other.Environment)
}

// converter converts pods.
type converter struct {
	Driver string // also the name of the class of whole GPUs
	// Families are the names of the families to convert.
	Families []string
	// Models are those of the GPUs that can be shared.
	Models []model
	// Partitions are the profiles of the partitions that a request in TFLOP/s may get.
	Partitions []partition
	// MemoryUnit is the size of one aliyun.com/gpu-mem in bytes; 0: 1 GiB.
	MemoryUnit int64
	Names      ownNames
	// Extended are the extended resources that the driver's classes have; nil: those of the chart.
	Extended []string
}

// model is a model of GPU that can be shared.
type model struct {
	Memory      int64  // bytes
	PeakCompute int64  // TFLOP/s
	Isolation   string // empty: not known
}

// partition is a MIG profile of a model of GPU.
type partition struct {
	Product, Profile string
	Memory           int64 // bytes
	PeakCompute      int64 // TFLOP/s
}

// modelsOf returns the models of the published GPUs that can be shared.
func modelsOf(v *cluster.View) []model {
	var all []model
	for _, kind := range v.Kinds() {
		if kind.Type() == gpu.TypeGPU && kind.Sharing() == gpu.Fractional.String() {
			all = append(all, model{Memory: kind.Capacity("memory"), PeakCompute: kind.PeakCompute(),
				Isolation: kind.Isolation()})
		}
	}
	return all
}

// partitionsOf returns the profiles of the published partitions. Compute instances that share the memory of others
// ("1c.3g.40gb") are left out. Without the class of partitions there are none: a claim that names a class that does not
// exist is never allocated.
func partitionsOf(v *cluster.View) []partition {
	if _, ok := v.Class(partitionClass(v.Driver())); !ok {
		return nil
	}
	var all []partition
	for _, kind := range v.Kinds() {
		if kind.Type() == gpu.TypeMIG && !strings.Contains(kind.Profile(), "c.") {
			all = append(all, partition{Product: kind.Product(), Profile: kind.Profile(),
				Memory: kind.Capacity("memory"), PeakCompute: kind.PeakCompute()})
		}
	}
	return all
}

// partitionClass returns the name of the chart's class of partitions.
func partitionClass(driver string) string { return "mig." + strings.TrimPrefix(driver, "gpu.") }

// conversion is what a pod asks for, as a claim.
type conversion struct {
	family string
	// Spec is the spec of the claim. It is nil if the pod only uses existing claims.
	Spec *resourceapi.ResourceClaimSpec
	// Warnings say what works differently.
	Warnings []string

	containers []converted
}

// converted is a container, and where it finds its devices.
type converted struct {
	init    bool
	index   int
	request string // of Spec; empty: Claim is set
	claim   string
	removed []corev1.ResourceName
	gpus    int64 // 0: as many as the existing claim has
}

// Bounds of what is converted, and told. The user decides how large a pod is, and the API server has not validated it.
const (
	maxContainers = 250
	maxTexts      = 20 // errors, or warnings
)

// isRefused reports whether the API server refuses the pod for the size of its annotations.
func isRefused(pod *corev1.Pod) bool {
	return apivalidation.ValidateAnnotationsSize(pod.Annotations) != nil
}

// convertPod returns what the pod asks for in the way of one of the families, or nil if it asks for nothing. It does
// not change the pod.
func (c converter) convertPod(pod *corev1.Pod) (*conversion, error) {
	if slices.ContainsFunc(pod.Spec.ResourceClaims, isConverted) || isRefused(pod) {
		return nil, nil // webhooks may be called again
	}
	renamed, errs := c.Names.withDefaultNames(pod)
	if err := errs.ToAggregate(); err != nil {
		return nil, err
	}
	var found *conversion
	for _, f := range families {
		if !slices.Contains(c.Families, f.Name) || !f.concerns(renamed) {
			continue
		}
		if n := len(pod.Spec.Containers) + len(pod.Spec.InitContainers); n > maxContainers {
			return nil, fmt.Errorf("the pod has %d containers; pods with at most %d are converted", n, maxContainers)
		}
		one, err := c.convert(f, renamed, pod)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		if one == nil {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("the pod asks for GPUs in the ways of %s and of %s; keep one", found.family, f.Name)
		}
		found = one
	}
	return found, nil
}

// claimNames matches the names of claims that Apply adds to pods.
var claimNames = regexp.MustCompile(`^` + claimName + `(-\d+)?$`)

func isConverted(c corev1.PodResourceClaim) bool { return claimNames.MatchString(c.Name) }

// concerns reports whether the pod has a resource or an annotation of the family.
func (f family) concerns(pod *corev1.Pod) bool {
	for name := range pod.Annotations {
		if f.isAnnotation(name) {
			return true
		}
	}
	return f.hasResources(pod)
}

// isAnnotation reports whether an annotation of this name asks for GPUs.
func (f family) isAnnotation(name string) bool {
	return slices.Contains(f.Annotations, name) || slices.ContainsFunc(f.AnnotationPrefixes,
		func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// hasResources reports whether a container has a resource of the family.
func (f family) hasResources(pod *corev1.Pod) bool {
	has := func(c corev1.Container) bool { return len(converter{}.resourcesOf(f, c)) > 0 }
	return slices.ContainsFunc(pod.Spec.InitContainers, has) || slices.ContainsFunc(pod.Spec.Containers, has)
}

// resourcesOf returns the names of the family's resources that the container has, as it writes them.
func (c converter) resourcesOf(f family, container corev1.Container) []corev1.ResourceName {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(limits(&container))), func(name corev1.ResourceName) bool {
		return !slices.Contains(f.Resources, c.Names.defaultName(name))
	})
}

// asked is what one container asks for.
type asked struct {
	container *corev1.Container // as it is written
	path      *field.Path
	converted
	gpuRequest
}

// convert returns what the pod asks for in the way of the family. original is the pod as it is written.
func (c converter) convert(f family, pod, original *corev1.Pod) (*conversion, error) {
	all, err := c.asked(f, pod, original)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	if pod.Spec.NodeName != "" {
		return nil, field.Invalid(field.NewPath("spec", "nodeName"), pod.Spec.NodeName, "must be empty: without the "+
			"scheduler the pod gets no GPU; use nodeSelector")
	}
	rest := beside{converter: c, family: f, pod: original, asked: all}
	if rest.check(); len(rest.errs) > 0 {
		return nil, rest.errs.ToAggregate()
	}
	claim, warnings, err := c.claimFor(all)
	if err != nil {
		return nil, err
	}
	var scheduler []string
	if name := otherScheduler(pod); name != "" {
		scheduler = append(scheduler, fmt.Sprintf("schedulerName %s is kept: that scheduler has to allocate the "+
			"claim; without schedulerName, the scheduler of Kubernetes does", name))
	}
	result := &conversion{family: f.Name,
		Warnings: bounded(slices.Concat(scheduler, rest.warnings, warnings, claim.warnings))}
	for _, a := range all {
		a.gpus = a.Count
		result.containers = append(result.containers, a.converted)
	}
	switch n := len(claim.spec.Devices.Requests); {
	case n > resourceapi.DeviceRequestsMaxSize:
		return nil, fmt.Errorf("%d containers ask for GPUs; a claim can have %d requests", n,
			resourceapi.DeviceRequestsMaxSize)
	case claim.devices > resourceapi.AllocationResultsMaxSize:
		return nil, fmt.Errorf("the pod asks for %d GPUs; a claim can have %d", claim.devices,
			resourceapi.AllocationResultsMaxSize)
	case n > 0:
		result.Spec = &claim.spec
	}
	return result, nil
}

// otherScheduler returns the pod's scheduler, if it is not that of Kubernetes.
func otherScheduler(pod *corev1.Pod) string {
	if name := pod.Spec.SchedulerName; name != corev1.DefaultSchedulerName {
		return name
	}
	return ""
}

// claimFor returns the claim for what the containers ask for, and where each finds its devices.
func (c converter) claimFor(all []asked) (claim claimBuilder, warnings []string, err error) {
	for i := range all {
		a := &all[i]
		if a.claim = a.Claim; a.claim == "" {
			a.request = a.container.Name
			if earlier := reusable(all[:i], *a); earlier != "" {
				a.request = earlier
			} else if err := claim.add(c, a.request, a.gpuRequest); err != nil {
				return claim, nil, fmt.Errorf("container %s: %w", a.container.Name, err)
			} else if a.init && !a.sidecar() {
				a.Warnings = append(a.Warnings, "no other container asks for the same, so its share stays allocated "+
					"as long as the pod")
			}
		}
		for _, w := range a.Warnings[:min(len(a.Warnings), maxTexts)] {
			warnings = append(warnings, fmt.Sprintf("container %s: %s", a.container.Name, w))
		}
	}
	return claim, warnings, nil
}

// asked returns what the containers ask for: those that run all the time first, so that init containers can use their
// devices.
func (c converter) asked(f family, pod, original *corev1.Pod) ([]asked, error) {
	var all []asked
	var errs field.ErrorList
	base := container{Containers: len(pod.Spec.Containers), Annotations: pod.Annotations,
		Sorted: slices.Sorted(maps.Keys(pod.Annotations)), AnnotationPath: field.NewPath("metadata", "annotations"),
		Pod: pod, Driver: c.Driver, MemoryUnit: cmp.Or(c.MemoryUnit, gib)}
	look := func(containers, originals []corev1.Container, path *field.Path, init bool) {
		for i := range containers {
			in := base
			in.Name, in.First, in.Path = containers[i].Name, !init && i == 0, path.Index(i).Child("resources", "limits")
			in.Resources, in.Renamed = limits(&containers[i]), c.Names.renamed(originals[i])
			r := &reader{container: in}
			request, problems := r.result(f.read(r))
			problems = append(problems, f.unequal(containers[i], path.Index(i).Child("resources", "requests"))...)
			c.Names.inOwnNames(problems, originals[i])
			errs = append(errs, problems...)
			errs = errs[:min(len(errs), maxTexts)]
			if request != nil {
				all = append(all, asked{&originals[i], path.Index(i), converted{init: init, index: i,
					removed: c.resourcesOf(f, originals[i])}, *request})
			}
		}
	}
	look(pod.Spec.Containers, original.Spec.Containers, field.NewPath("spec", "containers"), false)
	look(pod.Spec.InitContainers, original.Spec.InitContainers, field.NewPath("spec", "initContainers"), true)
	return all, errs.ToAggregate()
}

// unequal refuses requests of the family that are not the limits, as Kubernetes does: an extended resource has one
// amount.
func (f family) unequal(c corev1.Container, path *field.Path) (errs field.ErrorList) {
	for _, name := range f.Resources {
		request, ok := c.Resources.Requests[name]
		if limit, both := c.Resources.Limits[name]; ok && both && limit.Cmp(request) != 0 {
			errs = append(errs, field.Invalid(path.Key(string(name)), request.AsDec().String(), "must be the limit, "+
				limit.AsDec().String()))
		}
	}
	return errs
}

// limits returns the limits of a container, and the requests for which there is no limit.
func limits(c *corev1.Container) corev1.ResourceList {
	all := corev1.ResourceList{}
	maps.Copy(all, c.Resources.Requests)
	maps.Copy(all, c.Resources.Limits)
	return all
}

// sidecar reports whether it is an init container that runs as long as the pod.
func (a asked) sidecar() bool {
	return a.init && ptr.Deref(a.container.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways
}

// reusable returns the request of an earlier container that an init container can use, because it asks for the same and
// ends before that container starts.
func reusable(earlier []asked, a asked) string {
	if !a.init || a.sidecar() {
		return ""
	}
	i := slices.IndexFunc(earlier, func(e asked) bool { return !e.sidecar() && e.gpuRequest.equal(a.gpuRequest) })
	if i < 0 {
		return ""
	}
	return earlier[i].request
}
