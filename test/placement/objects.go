// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/test/fleet"
	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

const (
	namespace = "default"
	// priorityClass is the class of all pods. They preempt nobody: pods of the trace have no priorities.
	priorityClass = "placement"
)

// A share is a fraction of any GPU, so all models have the same memory: 16 MiB for each thousandth.
const memoryOfThousandth = 16 << 20

// profile is the hardware of a node, for the fleet. Model decides the product name; the rest is the same for all.
const profile = `name: %s
kernel: 6.8.0-60-generic
system: {SystemGetDriverVersion: 580.95.05, SystemGetNVMLVersion: 13.580.95.05, SystemGetCudaDriverVersion: 13000}
defaults:
  pci: {deviceId: 0x1eb8, subsystemId: 0x12a210de}
  calls:
    GetName: %s
    GetBrand: BRAND_NVIDIA
    GetArchitecture: DEVICE_ARCH_TURING
    GetCudaComputeCapability: {major: 7, minor: 5}
    GetNumGpuCores: 2560
    GetMemoryInfo: {total: %d, reserved: 0}
    GetMigMode: {error: ERROR_NOT_SUPPORTED}
    GetMaxMigDeviceCount: 0
    GetNumaNodeId: {error: ERROR_NOT_SUPPORTED}
    GetComputeMode: COMPUTEMODE_DEFAULT
    GetEccMode: {current: FEATURE_ENABLED, pending: FEATURE_ENABLED}
    GetSupportedEventTypes: 0x1f
    GetGpuFabricInfo: {error: ERROR_NOT_SUPPORTED}
    GetNvLinkState: {error: ERROR_NOT_SUPPORTED}
gpus:
`

// fleetNodes writes a profile for each kind of node of the trace into the folder, and returns the fleet's nodes.
func fleetNodes(nodes []trace.Node, dir string) ([]fleet.Node, error) {
	written := map[string]bool{}
	var all []fleet.Node
	for _, n := range nodes {
		name := fmt.Sprintf("%s-x%d", strings.ToLower(n.Model), n.GPUs)
		file := filepath.Join(dir, name+".yaml")
		if !written[file] {
			text := fmt.Sprintf(profile, name, n.Model, int64(trace.Whole)*memoryOfThousandth)
			for i := range n.GPUs {
				text += fmt.Sprintf("- pci: {address: \"0000:%02x:00.0\", root: \"pci0000:%02x\", numaNode: 0}\n",
					16+i*8, 15+i*8)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				return nil, err
			}
			written[file] = true
		}
		all = append(all, fleet.Node{Name: n.Name, Profile: file,
			CPU:    *resource.NewMilliQuantity(n.CPU, resource.DecimalSI),
			Memory: *resource.NewQuantity(n.Memory<<20, resource.BinarySI)})
	}
	return all, nil
}

// newClaim returns the claim of the pod, or nil if it has no GPUs. A share asks for memory and for multiprocessors,
// which are counted in whole percent: a share of 12.5 % asks for 12.
func newClaim(name string, p trace.Pod) *resourceapi.ResourceClaim {
	if p.GPUs == 0 {
		return nil
	}
	request := resourceapi.ExactDeviceRequest{DeviceClassName: fleet.Driver,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(p.GPUs)}
	if p.Amount < trace.Whole {
		request.Capacity = &resourceapi.CapacityRequirements{
			Requests: map[resourceapi.QualifiedName]resource.Quantity{
				"memory": *resource.NewQuantity(p.Amount*memoryOfThousandth, resource.BinarySI),
				"cores":  *resource.NewQuantity(p.Amount/10, resource.DecimalSI)}}
	}
	if len(p.Models) > 0 {
		request.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(
			"device.attributes['%s'].productName in ['%s']", fleet.Driver, strings.Join(p.Models, "', '"))}}}
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &request}}}}}
}

// newPod returns the pod, which uses the claim of the same name if it has GPUs.
func newPod(name, scheduler string, p trace.Pod) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{
		SchedulerName: scheduler, PriorityClassName: priorityClass,
		TerminationGracePeriodSeconds: ptr.To(int64(0)), AutomountServiceAccountToken: ptr.To(false),
		Containers: []corev1.Container{{Name: "main", Image: "localhost/never-pulled:v1",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(p.CPU, resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(p.Memory<<20, resource.BinarySI)}}}}}}
	if p.GPUs > 0 {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
	return pod
}
