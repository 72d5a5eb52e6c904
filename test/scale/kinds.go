// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// kind is a kind of pod that is counted.
type kind struct {
	name     string // as the page has it
	devices  string // of its claim, in YAML; empty: it has no claim
	extended string // the extended resource that its container asks for
	mig      bool   // it needs partitions
	count    int    // how many devices it gets
}

// none is what all others are compared with.
var none = kind{name: "no claim"}

// one returns a claim for devices of a class; more is the rest of the request.
func one(class, more string) string {
	return fmt.Sprintf("{requests: [{name: gpu, exactly: {deviceClassName: %s%s}}]}", class, more)
}

func selected(class, cel string) string { return one(class, selectors(cel)) }

func selectors(cel string) string {
	return fmt.Sprintf(", selectors: [{cel: {expression: %q}}]", cel)
}

// shares returns a claim for so many equal shares, which fill an H100: the scheduler takes them from one GPU.
func shares(class string, count int) string {
	var all []string
	for i := range count {
		all = append(all, fmt.Sprintf("{name: gpu-%d, exactly: {deviceClassName: %s, "+
			"capacity: {requests: {memory: %dMi}}}}", i, class, 81559/count))
	}
	return "{requests: [" + strings.Join(all, ", ") + "]}"
}

// matching returns a claim for devices that have the same value of an attribute.
func matching(class string, count int, attribute string) string {
	return fmt.Sprintf("{requests: [{name: gpu, exactly: {deviceClassName: %s, count: %d}}], "+
		"constraints: [{requests: [gpu], matchAttribute: %s}]}", class, count, attribute)
}

// ofModel is an alternative in an ordered list.
func ofModel(name, model string) string {
	return fmt.Sprintf("{name: %s, deviceClassName: gpu.nvidia.com%s}", name,
		selectors("device.attributes['gpu.nvidia.com'].productName == '"+model+"'"))
}

// The fleet's model is the last of the list: no node has the others.
var strongestFirst = "{requests: [{name: gpu, firstAvailable: [" + ofModel("h200", "NVIDIA H200") + ", " +
	ofModel("h100-pcie", "NVIDIA H100 PCIe") + ", " + ofModel("h100-sxm", "NVIDIA H100 80GB HBM3") + "]}]}"

const (
	memoryAndCapability = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('70Gi')) >= 0 && " +
		"device.attributes['gpu.nvidia.com'].cudaComputeCapability.compareTo(semver('9.0.0')) >= 0"
	partitionByMemory = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('15Gi')) >= 0 && " +
		"device.attributes['gpu.nvidia.com'].multiprocessors >= 30"
	smallAndLarge = `{requests: [{name: large, exactly: {deviceClassName: mig-3g.40gb.nvidia.com}},
	{name: small, exactly: {deviceClassName: mig-1g.10gb.nvidia.com}}],
	constraints: [{requests: [small, large], matchAttribute: gpu.nvidia.com/parentUUID}]}`
)

// documented are the kinds of claims of docs/use/claims.md that a fleet of eight H100 has, without node configurations.
var documented = []kind{
	{name: "one GPU", devices: one("gpu.nvidia.com", ""), count: 1},
	{name: "a GPU of a model", devices: selected("gpu.nvidia.com",
		"device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H100 80GB HBM3'"), count: 1},
	{name: "a GPU with memory and compute capability", count: 1,
		devices: selected("gpu.nvidia.com", memoryAndCapability)},
	{name: "the strongest of three models (`firstAvailable`)", devices: strongestFirst, count: 1},
	{name: "a share: 5 GiB, 30 % of the cores", count: 1,
		devices: one("gpu.nvidia.com", ", capacity: {requests: {memory: 5Gi, cores: 30}}")},
	{name: "two GPUs with NVLink (`matchAttribute`)", count: 2,
		devices: matching("gpu.nvidia.com", 2, "gpu.nvidia.com/nvlinkDomain")},
	{name: "two GPUs of a NUMA node (`matchAttribute`)", count: 2,
		devices: matching("gpu.nvidia.com", 2, "resource.kubernetes.io/numaNode")},
	{name: "`nvidia.com/gpu: 1`", extended: "nvidia.com/gpu", count: 1},
	{name: "a partition by the class of its profile", mig: true, devices: one("mig-1g.10gb.nvidia.com", ""), count: 1},
	{name: "a partition by its profile", mig: true, devices: selected("mig.nvidia.com",
		"device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"), count: 1},
	{name: "a partition by memory and multiprocessors", mig: true, count: 1,
		devices: selected("mig.nvidia.com", partitionByMemory)},
	{name: "a 3g and a 1g of one GPU", mig: true, devices: smallAndLarge, count: 2},
	{name: "`nvidia.com/mig-1g.10gb: 1`", mig: true, extended: "nvidia.com/mig-1g.10gb", count: 1},
}

// whole are the documented kinds that need no partitions.
func whole() (kinds []kind) {
	for _, k := range documented {
		if !k.mig {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// Of the shapes of scheduler_perf.
const (
	perfDriver = "test-driver.cdi.k8s.io"
	perfClass  = "test-class"
)

// perfDevices is how many devices a node has in Kubernetes' scheduler_perf.
const perfDevices = 10

// perf are shapes of scheduler_perf: SteadyStateClusterResourceClaimTemplate, and the same with a selector.
var perf = []kind{
	{name: "one device", devices: one(perfClass, ""), count: 1},
	{name: "one device, two comparisons in a selector", count: 1, devices: selected(perfClass,
		"device.capacity['test-driver.cdi.k8s.io'].memory.compareTo(quantity('1Gi')) == 0 && "+
			"device.attributes['test-driver.cdi.k8s.io'].family == 'GPU'")},
	{name: "two devices with the same attribute", devices: matching(perfClass, 2, "test-driver.cdi.k8s.io/family"),
		count: 2},
}

// Of the shape SchedulingWithResourceClaimTemplateListAttributes, here with an attribute that is no list: half of the
// devices, and those are the first, have an attribute that no other one has.
const matchDevices = 64

var perfMatch = []kind{
	{name: "32 of 64 devices with the same attribute", count: matchDevices / 2,
		devices: matching(perfClass, matchDevices/2, "test-driver.cdi.k8s.io/match")},
}

// template returns the pods' ResourceClaimTemplate, or nil if they have none.
func (k kind) template(namespace string) (*resourceapi.ResourceClaimTemplate, error) {
	if k.devices == "" {
		return nil, nil
	}
	t := &resourceapi.ResourceClaimTemplate{}
	if err := yaml.UnmarshalStrict(fmt.Appendf(nil, "spec: {spec: {devices: %s}}", k.devices), t); err != nil {
		return nil, fmt.Errorf("claim of %s: %w", k.name, err)
	}
	t.Namespace, t.Name = namespace, templateName
	return t, nil
}

const templateName = "claim"

// pod returns a pod of the kind.
func (k kind) pod(namespace, name string, nodes map[string]string) *corev1.Pod {
	asks := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"),
		corev1.ResourceMemory: resource.MustParse("10Mi")}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To(int64(0)), NodeSelector: nodes,
			AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{Name: "main", Image: "localhost/never-pulled:v1",
				Resources: corev1.ResourceRequirements{Requests: asks}}}}}
	main := &pod.Spec.Containers[0].Resources
	switch {
	case k.extended != "":
		main.Limits = corev1.ResourceList{corev1.ResourceName(k.extended): resource.MustParse("1")}
	case k.devices != "":
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu",
			ResourceClaimTemplateName: ptr.To(templateName)}}
		main.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
	return pod
}
