// SPDX-License-Identifier: Apache-2.0

package fleettest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// Mount mounts a volume in the container of the pod.
func Mount(p *corev1.Pod, path string, source corev1.VolumeSource) {
	p.Spec.Volumes = []corev1.Volume{{Name: "shm", VolumeSource: source}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "shm", MountPath: path}}
}

// HostMemory mounts a directory of the host where nodes with MPS mount memory of their own: those refuse the pod.
func HostMemory(p *corev1.Pod) *corev1.Pod {
	Mount(p, "/dev/shm", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/shared"}})
	return p
}

// TwoIsolations returns nodes of one kind, of which the first has no MPS.
func TwoIsolations(t testing.TB) *cluster.Snapshot {
	t.Helper()
	none := gpu.SharingMode{Isolation: gpu.IsolationNone}
	return Fleet(t, clustertest.SimNode{Name: "free", Profile: "t4-x2", Use: none},
		clustertest.SimNode{Name: "mps", Profile: "t4-x2"})
}

// Large returns that many nodes of the profile, of which the named part of the whole GPUs is held.
func Large(b testing.TB, nodes int, n clustertest.SimNode, held float64) *cluster.Snapshot {
	b.Helper()
	var all []clustertest.SimNode
	for i := range nodes {
		n.Name = fmt.Sprintf("node-%04d", i)
		all = append(all, n)
	}
	s := Fleet(b, all...)
	SetUUIDs(s)
	r := rand.New(rand.NewPCG(1, 0))
	for _, slice := range s.Slices {
		for _, d := range slice.Spec.Devices {
			if ptr.Deref(d.Attributes["type"].StringValue, "") != "gpu" || r.Float64() >= held {
				continue
			}
			c := Claim(b, fmt.Sprint("held-", len(s.Claims)), GPUs(""))
			c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: driver,
					Pool: slice.Spec.Pool.Name, Device: d.Name}}}}
			s.Claims = append(s.Claims, c)
		}
	}
	return s
}

// SetUUIDs gives each device another UUID.
func SetUUIDs(s *cluster.Snapshot) {
	for i, slice := range s.Slices {
		for j := range slice.Spec.Devices {
			uuid := resourceapi.DeviceAttribute{StringValue: ptr.To(fmt.Sprint(i, j))}
			slice.Spec.Devices[j].Attributes["uuid"] = uuid
		}
	}
}

// RandomRequest returns YAML of the content of a request.
func RandomRequest(r *rand.Rand, counts bool) string {
	const attribute, capacity = "device.attributes['gpu.nvidia.com'].", "device.capacity['gpu.nvidia.com']."
	class := Pick(r, driver, driver, driver, driver, driver, driver, "mig.nvidia.com", "shared.gpu.nvidia.com")
	var clauses []string
	for range Pick(r, 0, 0, 1, 1, 2, 3) {
		clauses = append(clauses, Pick(r,
			capacity+"memory.compareTo(quantity('"+Pick(r, "10Gi", "20Gi", "40Gi", "1Ti")+"')) "+
				Pick(r, ">= 0", "> 0", "<= 0"),
			capacity+"memory.isGreaterThan(quantity('"+Pick(r, "16Gi", "40Gi")+"'))",
			attribute+"productName == '"+Pick(r, "Tesla T4", "NVIDIA L40S", "NVIDIA B300")+"'",
			"("+attribute+"productName.contains('T4') || "+attribute+"productName.contains('A100'))",
			attribute+"cudaComputeCapability.compareTo(semver('"+Pick(r, "8.0.0", "9.0.0", "12.0.0")+"')) "+
				Pick(r, ">= 0", "< 0"),
			attribute+"peakCompute "+Pick(r, ">=", ">", "<")+" "+Pick(r, "1000", "100000"),
			"device.attributes['resource.kubernetes.io'].numaNode == "+Pick(r, "0", "1"),
			attribute+"rack == '"+Pick(r, "r1", "r2")+"'",
			attribute+"neverPublished == 'x'"))
	}
	text := "deviceClassName: " + class
	if len(clauses) > 0 {
		text += fmt.Sprintf(", selectors: [{cel: {expression: %q}}]", strings.Join(clauses, " && "))
	}
	if r.IntN(3) == 0 {
		text += ", capacity: {requests: {" + Pick(r, "memory: 5Gi", "memory: 30Gi", "memory: 200Gi", `cores: "60"`,
			`memory: 12Gi, cores: "120"`, `shares: "2"`) + "}}"
	}
	switch {
	case counts && r.IntN(3) == 0:
		text += fmt.Sprintf(", count: %d", Pick(r, 2, 3, 5, 9))
	case counts && r.IntN(12) == 0:
		text += ", allocationMode: All"
	}
	if r.IntN(6) == 0 {
		text += ", tolerations: [{key: gpu.nvidia.com/xid, operator: Exists}]"
	}
	return text
}

// RandomClaim returns YAML of spec.devices.
func RandomClaim(r *rand.Rand) string {
	var all []string
	for i := range Pick(r, 1, 1, 1, 2) {
		if r.IntN(6) == 0 {
			all = append(all, fmt.Sprintf("{name: r%d, firstAvailable: [{name: a, %s}, {name: b, %s}]}", i,
				RandomRequest(r, false), RandomRequest(r, false)))
			continue
		}
		all = append(all, fmt.Sprintf("{name: r%d, exactly: {%s}}", i, RandomRequest(r, true)))
	}
	text := Requests("[" + strings.Join(all, ", ") + "]")
	if r.IntN(4) == 0 {
		text += "\nconstraints: [{" + Pick(r, "matchAttribute: gpu.nvidia.com/productName",
			"matchAttribute: resource.kubernetes.io/numaNode", "matchAttribute: gpu.nvidia.com/nvlinkDomain",
			"distinctAttribute: gpu.nvidia.com/productName", "distinctAttribute: resource.kubernetes.io/numaNode") +
			"}]"
	}
	return text
}

// WholeGPUs returns the names of the GPUs of a node, sorted.
func WholeGPUs(s *cluster.Snapshot, node string) []string {
	var all []string
	for _, slice := range s.Slices {
		for _, d := range slice.Spec.Devices {
			if slice.Spec.Pool.Name == node && !slices.Contains(all, gpu.ParentName(d.Name)) {
				all = append(all, gpu.ParentName(d.Name))
			}
		}
	}
	slices.Sort(all)
	return all
}

// onlyGPU returns the slices with a taint on all GPUs but one, or a device of it.
func onlyGPU(s *cluster.Snapshot, node, name string) []*resourceapi.ResourceSlice {
	var all []*resourceapi.ResourceSlice
	for _, slice := range s.Slices {
		slice = slice.DeepCopy()
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			if slice.Spec.Pool.Name != node || d.Name != name && (gpu.ParentName(d.Name) != name) {
				d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: "other",
					Effect: resourceapi.DeviceTaintEffectNoSchedule})
			}
		}
		all = append(all, slice)
	}
	return all
}

// ShareOf is a claim for part of a GPU: "5Gi", "1g.10gb", "whole" or "vm".
func ShareOf(what string) string {
	switch {
	case what == "whole":
		return GPUs("")
	case what == "vm":
		return Requests("[{name: gpu, exactly: {deviceClassName: vfio.gpu.nvidia.com}}]")
	case strings.Contains(what, "g."):
		return Requests("[{name: gpu, exactly: {deviceClassName: mig.nvidia.com, selectors: [{cel: {expression: " +
			"\"device.attributes['gpu.nvidia.com'].profile == '" + what + "'\"}}]}}]")
	}
	return GPUs(", capacity: {requests: {memory: " + what + "}}")
}

// RunPod adds a pod of a controller of that kind, whose claims from templates hold what is written as "NODE/GPU WHAT",
// the GPU by number. It reports whether there is room.
func RunPod(t testing.TB, s *cluster.Snapshot, name, kind string, holds ...string) bool {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("pod-" + name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}}}}}
	if kind != "" {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, UID: types.UID("owner-" + name),
			Controller: ptr.To(true)}}
	}
	for i, hold := range holds {
		at, what, _ := strings.Cut(hold, " ")
		node, number, _ := strings.Cut(at, "/")
		p.Spec.NodeName = node
		ref := fmt.Sprint(name, "-", i)
		c := Claim(t, ref, ShareOf(what))
		c.Namespace = "ns"
		s.Templates = append(s.Templates, &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: ref, UID: types.UID("template-" + ref)},
			Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: *c.Spec.DeepCopy()}})
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: ref,
			ResourceClaimTemplateName: ptr.To(ref)})
		p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: ref,
			ResourceClaimName: ptr.To(ref)})
		c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", UID: p.UID, Controller: ptr.To(true)}}
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: p.UID}}
		if !HoldOn(t, s, node, WholeGPUs(s, node)[number[0]-'0'], c) {
			return false
		}
	}
	s.Pods = append(s.Pods, p)
	return true
}

// HoldOn gives the claim devices of a GPU, or a device.
func HoldOn(t testing.TB, s *cluster.Snapshot, node, device string, c *resourceapi.ResourceClaim) bool {
	t.Helper()
	only := *s
	only.Slices = onlyGPU(s, node, device)
	on, results, err := Judge(t, &only, nil, c)
	if err != nil {
		t.Fatal(err)
	}
	if on == node {
		c.Status.Allocation = &results[0]
		s.Claims = append(s.Claims, c)
	}
	return on == node
}

// Now is the time of all plans in tests.
var Now = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// PodOn returns a pod of that priority, which has run for that many minutes. Its claims are named after it.
func PodOn(node, name string, priority int32, cpu string, minutes int,
	claims ...*resourceapi.ResourceClaim) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("pod-" + name),
		Labels: map[string]string{}},
		Spec: corev1.PodSpec{NodeName: node, Priority: &priority, Containers: []corev1.Container{{Name: "main",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}}}}}
	if node != "" {
		p.Status.StartTime = ptr.To(metav1.NewTime(Now.Add(-time.Duration(minutes) * time.Minute)))
	}
	for _, c := range claims {
		c.Namespace = "ns"
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c.Name,
			ResourceClaimTemplateName: ptr.To(c.Name)})
		p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{
			Name: c.Name, ResourceClaimName: ptr.To(c.Name)})
		if node == "" {
			c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: p.UID, Controller: ptr.To(true)}}
			continue
		}
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods",
			Name: name, UID: p.UID})
	}
	return p
}

// RandomFleet returns up to three nodes. Some of their GPUs are tainted, and some have no attribute rack.
func RandomFleet(t testing.TB, r *rand.Rand) *cluster.Snapshot {
	t.Helper()
	var nodes []clustertest.SimNode
	for i := range 1 + r.IntN(3) {
		nodes = append(nodes, clustertest.SimNode{Name: fmt.Sprintf("node-%d", i),
			Profile: Pick(r, "t4-x2", "t4-x2", "mixed", "l40s-x4", "rtxpro6000-x2", "workstation"),
			Use: Pick(r, gpu.SharingMode{}, gpu.SharingMode{}, Exclusive,
				gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 2, Isolation: gpu.IsolationNone},
				gpu.SharingMode{Sharing: gpu.Unlimited, Isolation: gpu.IsolationNone})})
	}
	s := Fleet(t, nodes...)
	for _, slice := range s.Slices {
		for i := range slice.Spec.Devices {
			if r.IntN(3) > 0 {
				rack := Pick(r, "r1", "r2")
				slice.Spec.Devices[i].Attributes["rack"] = resourceapi.DeviceAttribute{StringValue: &rack}
			}
			if r.IntN(8) == 0 {
				slice.Spec.Devices[i].Taints = append(slice.Spec.Devices[i].Taints, resourceapi.DeviceTaint{
					Key: Pick(r, "gpu.nvidia.com/xid", "example.com/reserved"), Value: Pick(r, "",
						"79"),
					Effect: Pick(r, resourceapi.DeviceTaintEffectNoSchedule,
						resourceapi.DeviceTaintEffectNoExecute)})
			}
		}
	}
	return s
}

// Fill gives devices to other claims until so many do not fit.
func Fill(t testing.TB, r *rand.Rand, s *cluster.Snapshot) {
	t.Helper()
	for i := range r.IntN(14) {
		c := Claim(t, fmt.Sprintf("other-%d", i), Requests("[{name: gpu, exactly: {deviceClassName: "+
			Pick(r, driver, driver, "mig.nvidia.com")+", count: "+Pick(r, "1", "1", "1", "2")+
			Pick(r, "", ", capacity: {requests: {memory: 4Gi}}")+"}}]"))
		Hold(t, s, c)
	}
}
