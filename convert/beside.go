// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

const (
	// contextMemory is what a CUDA context needs at least: a process with less cannot start.
	contextMemory = 100 * mib
	// queueLabel makes Kueue count a pod or an owner of pods.
	queueLabel = "kueue.x-k8s.io/queue-name"
)

// beside checks the parts of a pod that are not converted: some meant something to the older system, and some do not
// go with the claim.
type beside struct {
	converter
	family   family
	pod      *corev1.Pod // as it is written
	asked    []asked
	errs     field.ErrorList
	warnings []string
}

func (b *beside) warn(format string, args ...any) {
	b.warnings = append(b.warnings, fmt.Sprintf(format, args...))
}

// check collects errors and warnings. Those about scheduling come first, because the text of an event is short.
func (b *beside) check() {
	b.resources()
	b.nodes()
	for i := range b.asked {
		a := &b.asked[i]
		if a.Claim == "" && !a.whole() {
			b.sharedMemory(a)
			b.cores(a)
			b.several(a)
			b.amount(a)
		}
		b.environment(a)
		if s := a.container.SecurityContext; s != nil && s.Privileged != nil && *s.Privileged {
			b.warn("container %s: it is privileged, so it may use every GPU of its node, whatever its claim says",
				a.container.Name)
		}
	}
	b.annotations(b.family)
	if queue, ok := b.pod.Labels[queueLabel]; ok {
		b.warn("%s: Kueue counts this pod as it is now, with a claim: quotas of the queue %s on the resources that "+
			"are removed do not count it", queueLabel, queue)
	}
}

// sharedMemory asks the rules of the node about a volume at /dev/shm.
func (b *beside) sharedMemory(a *asked) {
	volume := sharing.SharedMemoryOf(&b.pod.Spec, a.container)
	all, some := b.mps(a.gpuRequest)
	switch reason, change := volume.Refusal(); {
	case !some:
	case reason != "" && all:
		b.errs = append(b.errs, field.Forbidden(a.path.Child("volumeMounts"), reason+": "+change))
	case reason != "":
		b.warn("container %s: it does not start on a GPU with isolation mps: %s: %s", a.container.Name, reason, change)
	case volume.Notice() != "":
		b.warn("container %s: %s", a.container.Name, volume.Notice())
	}
}

// mps reports whether all or some GPUs that a share may get have isolation mps.
func (b *beside) mps(r gpuRequest) (all, some bool) {
	if slices.Contains(r.Selectors, fmt.Sprintf("device.attributes['%s'].isolation == 'mps'", b.Driver)) {
		return true, true
	}
	n := b.isolatedBy(gpu.IsolationMPS)
	return n > 0 && n == len(b.Models), n > 0 || b.unknown()
}

// unknown reports whether it is not known what enforces shares: no GPU is published, or models are only announced.
func (b *beside) unknown() bool {
	return len(b.Models) == 0 || slices.ContainsFunc(b.Models, func(m model) bool { return m.Isolation == "" })
}

// isolatedBy returns the number of models with an isolation.
func (b *beside) isolatedBy(isolation gpu.Isolation) (n int) {
	for _, m := range b.Models {
		if m.Isolation == isolation.String() {
			n++
		}
	}
	return n
}

// cores refuses a share of the multiprocessors if the isolation of all GPUs limits memory only.
func (b *beside) cores(a *asked) {
	if n := b.isolatedBy(gpu.IsolationCgroup); (a.Cores != 0 || a.TFLOPS != 0) && n > 0 && n == len(b.Models) {
		b.errs = append(b.errs, field.Forbidden(a.path.Child("resources", "limits"), sharing.MemoryOnly))
	}
}

// several warns of shares of several GPUs where it is not known what enforces them.
func (b *beside) several(a *asked) {
	if a.Count > 1 && b.unknown() {
		b.warn("container %s: GPUs with isolation mps do not give one container %d shares: MPS limits a process on "+
			"one GPU only", a.container.Name, a.Count)
	}
}

// amount warns of a share that no GPU has, or that no program can use.
func (b *beside) amount(a *asked) {
	least, most := a.Memory, a.Memory
	var largest int64
	for _, m := range b.Models {
		largest = max(largest, m.Memory)
		if of, _, ok := a.of(m); ok && a.Memory == 0 && (least == 0 || of < least) {
			least = of
		}
	}
	text := func(bytes int64) string { return resource.NewQuantity(bytes, resource.BinarySI).String() }
	switch {
	case largest > 0 && most > largest:
		b.warn("container %s: it asks for %s of a GPU, and the largest that is published and shared has %s; is the "+
			"unit right?", a.container.Name, text(most), text(largest))
	case least != 0 && least < contextMemory:
		b.warn("container %s: it gets %s of a GPU, and a CUDA context alone needs some %s; is the unit right?",
			a.container.Name, text(least), text(contextMemory))
	}
}

// variables are those with which the container itself chose or lifted its limits, and when they did.
var variables = []struct {
	name  string
	value *regexp.Regexp
	text  string
}{
	{"CUDA_DISABLE_CONTROL", isOn, "no longer lifts the limits"},
	{"CGPU_DISABLE", isOn, "no longer lifts the limits"},
	{"GPU_CORE_UTILIZATION_POLICY", regexp.MustCompile(`(?i)^(disable|default)$`),
		"no longer changes the limit of the multiprocessors"},
	{"CUDA_OVERSUBSCRIBE", isOn, "has no effect: there is no memory that the GPU does not have"},
	{"CUDA_DEVICE_MEMORY_LIMIT", anything, "has no effect: the claim has the limit"},
	{"CUDA_DEVICE_SM_LIMIT", anything, "has no effect: the claim has the limit"},
	{"CUDA_MPS_PIPE_DIRECTORY", anything, "has no effect: the driver sets it where the GPU has isolation mps"},
	{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", anything, "has no effect where the claim has the limit"},
	{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", anything, "has no effect where the claim has the limit"},
	{"NVIDIA_VISIBLE_DEVICES", regexp.MustCompile(`^(all|\d.*|GPU-.*|MIG-.*)$`),
		"has no effect: the container gets the GPUs of its claim"},
	{"ACTIVE_OOM_KILLER", isOn, "is read by HAMi's own library only"},
	{"GPU_MEM_OVERSOLD", isOn, "has no effect: there is no memory that the GPU does not have"},
}

var (
	isOn     = regexp.MustCompile(`(?i)^(true|1|on|yes|enabled?)$`)
	anything = regexp.MustCompile(``)
)

// environment warns of variables that chose or lifted limits.
func (b *beside) environment(a *asked) {
	for _, v := range variables {
		i := slices.IndexFunc(a.container.Env, func(e corev1.EnvVar) bool {
			return strings.HasPrefix(e.Name, v.name) && isIndex(e.Name[len(v.name):])
		})
		if i < 0 {
			continue
		}
		if e := a.container.Env[i]; e.ValueFrom != nil || v.value.MatchString(strings.TrimSpace(e.Value)) {
			b.warn("container %s: the variable %s %s", a.container.Name, e.Name, v.text)
		}
	}
}

// isIndex reports whether a suffix of a variable is empty, or the index of a GPU.
func isIndex(suffix string) bool {
	_, err := strconv.Atoi(strings.TrimPrefix(suffix, "_"))
	return suffix == "" || strings.HasPrefix(suffix, "_") && err == nil
}

// annotations warns of annotations of the families that have no meaning here, and of those that give a container GPUs
// past its claim.
func (b *beside) annotations(families ...family) {
	isForeign := func(name string) bool {
		return slices.ContainsFunc(families, func(f family) bool {
			return f.Foreign != nil && f.Foreign.MatchString(name)
		}) && !slices.ContainsFunc(families, func(f family) bool {
			return slices.Contains(f.Known, name) || f.isAnnotation(name)
		}) && !written.MatchString(name) && (len(b.asked) > 0 || strings.Contains(name, "gpu"))
	}
	for _, name := range slices.Sorted(maps.Keys(b.pod.Annotations)) {
		if injects.MatchString(name) {
			b.warn("the annotation %s gives a container devices whatever its claim says, where the node's runtime "+
				"reads it", name)
		}
		if isForeign(name) {
			text := "has no effect"
			if scheduler := otherScheduler(b.pod); scheduler != "" {
				text += " unless the scheduler " + scheduler + " reads it"
			}
			b.warn("the annotation %s %s", name, text)
		}
	}
}

// injects matches annotations with which a container runtime gives devices to containers.
var injects = regexp.MustCompile(`^(nvidia\.)?cdi\.k8s\.io/`)

// written matches annotations that schedulers and controllers write. A pod that was exported has them.
var written = regexp.MustCompile(`^ALIYUN_COM_GPU_|devices-(to-allocate|allocated)$|/(vgpu-)?(time|node|bind-time|` +
	`bind-phase|ids-new|mig-allocations)$|/gpu-(index|assigned)$|/predicate-|^elasticgpu\.io/(assumed|container-)|` +
	`^runai/shared-gpu-configmap$|^kai\.scheduler/(.*-timestamp|top-owner-metadata)$|^scheduler\.framework\.gpushare|` +
	`\.gpus\.devices$|\.gpu-memory\.portion\.limit$`)

// selects is a label, taint or the like of nodes that belongs to an older system.
var selects = []struct {
	key  *regexp.Regexp
	text string
}{
	{regexp.MustCompile(`^(gpu|gpushare|cgpu|vgpu|qgpu-device-enable|nvidia-device-enable|ack\.node\.gpu\.schedule|` +
		`ack\.gpushare\.placement|node-role\.kubernetes\.io/runai-.*)$`), systemLabel},
	{regexp.MustCompile(`^nvidia\.mps/`), "it is a label of nodes where somebody runs an MPS server, in KAI's " +
		"documentation; this driver runs MPS where claims need it, so leave it out, or label its nodes"},
	{regexp.MustCompile(`^([a-z0-9.-]*\.)?(hami\.io|4pd\.io|volcano\.sh|run\.ai|kai\.scheduler|tensor-fusion\.ai|` +
		`elasticgpu\.io|elasticgpu\.com|gaia\.tencent\.com|tke\.cloud\.tencent\.com|gpushare\.alibabacloud\.com|` +
		`aliyun\.accelerator)/`), systemLabel},
	{regexp.MustCompile(`^runai/`), systemLabel},
	{regexp.MustCompile(`^aliyun\.com/gpu|^tencent\.com/(gpu|vcuda)`), systemLabel},
	{regexp.MustCompile(`^nvidia\.com/gpu\.(present$|deploy\.)`), ""}, // this driver's nodes have them too
	{regexp.MustCompile(`^nvidia\.com/(gpu\.(sharing-strategy|replicas)|mps\.capable)$`),
		"it is about sharing by NVIDIA's device plugin, and nodes of this driver do not have it"},
	{regexp.MustCompile(`^nvidia\.com/(gpu|cuda|mig|gfd|vgpu)[.-]`), "nodes have it only while GPU Feature Discovery " +
		"runs; the attributes of GPUs (kubectl gpu ls) say the same in a claim"},
	{regexp.MustCompile(`^cloud\.google\.com/gke-(gpu-sharing-strategy|max-shared-clients-per-gpu|` +
		`gpu-partition-size)$`),
		"it is about sharing by the cloud's device plugin"},
	{regexp.MustCompile(`^k8s\.amazonaws\.com/accelerator$`), "it is about sharing by the cloud's device plugin"},
}

const systemLabel = "it is a label of older systems: nodes of this driver must have it, or the pod waits for ever"

// hostFiles are directories of older systems and of other MPS daemons.
var hostFiles = regexp.MustCompile(`^(/tmp/nvidia-mps|/usr/local/vgpu|/etc/gpu-manager|/run/nvidia/mps)(/|$)`)

// whatSelects says what a label of nodes means; empty: nothing that is known.
func whatSelects(key string) string {
	for _, s := range selects {
		if s.key.MatchString(key) {
			return s.text
		}
	}
	return ""
}

// nodes warns of what ties the pod to nodes of the older system.
func (b *beside) nodes() {
	spec := &b.pod.Spec
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		b.selector("nodeSelector", key, spec.NodeSelector[key])
	}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, e := range term.MatchExpressions {
				b.selector("nodeAffinity", e.Key, e.Values...)
			}
		}
	}
	if class := spec.RuntimeClassName; class != nil && *class != "" {
		b.warn("runtimeClassName %s is kept: nodes need a runtime of that name; the claim needs none", *class)
	}
	for _, v := range spec.Volumes {
		if v.HostPath != nil && hostFiles.MatchString(v.HostPath.Path) {
			b.warn("the volume %s is kept: %s belongs to the older system, or to an MPS daemon that is not this "+
				"driver's", v.Name, v.HostPath.Path)
		}
	}
	for _, t := range spec.Tolerations {
		if t.Key != "nvidia.com/gpu" && whatSelects(t.Key) == systemLabel {
			b.warn("the toleration of %s is kept: it lets the pod on nodes of the older system, where its claim gets "+
				"no GPU", t.Key)
		}
	}
}

// selector warns of one label that a node must have.
func (b *beside) selector(where, key string, values ...string) {
	text := whatSelects(key)
	if slices.ContainsFunc(values, func(v string) bool { return strings.HasSuffix(v, "-SHARED") }) {
		text = "its value ends with -SHARED, which NVIDIA's device plugin adds while it shares GPUs, and nodes of " +
			"this driver do not have it"
	}
	if text != "" {
		b.warn("%s %s is kept: %s", where, key, text)
	}
}

// resources refuses what a container cannot have beside its share, and warns of extended resources that are left over.
func (b *beside) resources() {
	for list, path := range containersOf(b.pod) {
		for i := range list {
			container := &list[i]
			at := slices.IndexFunc(b.asked, func(a asked) bool { return a.container.Name == container.Name })
			share := at >= 0 && b.asked[at].Claim == "" && !b.asked[at].whole()
			for _, name := range slices.Sorted(maps.Keys(limits(container))) {
				switch {
				case at >= 0 && slices.Contains(b.asked[at].removed, name):
				case b.provides(name) && share:
					at := path.Index(i).Child("resources", "limits").Key(string(name))
					b.errs = append(b.errs, field.Forbidden(at, "the container also has a share of a GPU: "+
						sharing.OneSetOfLimits+"; keep one"))
				case !b.provides(name) && isGPUResource(name):
					b.warn("container %s: %s stays in its resources: %s", container.Name, name, b.leftOver(name))
				}
			}
			if share && len(container.Resources.Claims) > 0 {
				b.warn("container %s: it also uses the claim %s: if that has a GPU, the container does not start, "+
					"because %s", container.Name, container.Resources.Claims[0].Name, sharing.OneSetOfLimits)
			}
		}
	}
}

// provides reports whether a class of this driver has the extended resource.
func (b *beside) provides(name corev1.ResourceName) bool {
	if class, ok := strings.CutPrefix(string(name), "deviceclass.resource.kubernetes.io/"); ok {
		return class == b.Driver || strings.HasSuffix(class, "."+strings.TrimPrefix(b.Driver, "gpu."))
	}
	if b.Extended != nil {
		return slices.Contains(b.Extended, string(name))
	}
	return name == wholeGPU || name == "nvidia.com/gpu.shared" || strings.HasPrefix(string(name), "nvidia.com/mig-")
}

// gpuResource matches the names of extended resources that are about GPUs, of this vendor or of others.
var gpuResource = regexp.MustCompile(`(?i)^[^/]+/.*(gpu|vram|cuda|tflops)|^nvidia\.com/(mig-|priority$)|` +
	`^(volcano\.sh|hami\.io|tensor-fusion\.ai|elasticgpu\.(io|com))/`)

// isGPUResource reports whether the name is that of an extended resource about GPUs.
func isGPUResource(name corev1.ResourceName) bool {
	domain, _, extended := strings.Cut(string(name), "/")
	return extended && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") &&
		(isKnown(name) || gpuResource.MatchString(string(name)))
}

// leftOver says why a resource about GPUs is not converted, and what to do.
func (b *beside) leftOver(name corev1.ResourceName) string {
	known := b.Names.defaultName(name)
	for _, f := range families {
		if slices.Contains(f.Resources, known) && !slices.Contains(b.Families, f.Name) {
			return fmt.Sprintf("it is one of %s, which is not converted here (controller.conversion.families)", f.Name)
		}
	}
	return "nothing here provides it, unless another device plugin does. If it is a name that an administrator chose " +
		"for an older system, controller.conversion.names says which"
}

// unconverted warns of extended resources and annotations about GPUs in a pod that asks for nothing that is converted.
func (c converter) unconverted(pod *corev1.Pod) []string {
	if slices.ContainsFunc(pod.Spec.ResourceClaims, isConverted) {
		return nil
	}
	b := beside{converter: c, pod: pod}
	b.resources()
	b.annotations(slices.DeleteFunc(slices.Clone(families), func(f family) bool {
		return !slices.Contains(c.Families, f.Name)
	})...)
	return bounded(b.warnings)
}

// bounded returns at most maxTexts warnings, each once.
func bounded(warnings []string) []string {
	var all []string
	for _, w := range warnings {
		if !slices.Contains(all, w) && len(all) < maxTexts {
			all = append(all, w)
		}
	}
	if more := len(slices.Compact(slices.Sorted(slices.Values(warnings)))) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return all
}
