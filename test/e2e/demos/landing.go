// SPDX-License-Identifier: Apache-2.0

package demos

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// address is how an allocation names a device.
type address struct{ driver, pool, device string }

// publishedDevices reads all slices of the driver.
func publishedDevices(ctx context.Context, cluster *kube.Cluster, driver string) (map[address]resourceapi.Device, error) {
	list, err := cluster.Slices(ctx, driver)
	if err != nil {
		return nil, err
	}
	devices := map[address]resourceapi.Device{}
	for _, slice := range list {
		for _, device := range slice.Spec.Devices {
			devices[address{driver, slice.Spec.Pool.Name, device.Name}] = device
		}
	}
	return devices, nil
}

// reportPod tells where the pod's claims landed and what its container saw, or why it is nowhere.
func reportPod(ctx context.Context, cluster *kube.Cluster, devices map[address]resourceapi.Device, pod *corev1.Pod) ([]string, error) {
	if pod.Spec.NodeName == "" {
		return append([]string{"landed: pod " + pod.Name + " nowhere, it is " + string(pod.Status.Phase)}, indent("saw:    ", unschedulable(pod))...), nil
	}
	var lines []string
	for _, name := range claimNames(pod) {
		var claim resourceapi.ResourceClaim
		if err := cluster.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: name}, &claim); err != nil {
			return nil, err
		}
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			lines = append(lines, fmt.Sprintf("landed: pod %s on %s: %s", pod.Name, pod.Spec.NodeName,
				describe(r, devices[address{r.Driver, r.Pool, r.Device}])))
		}
	}
	if !kube.Started(pod) {
		return lines, nil
	}
	for _, container := range pod.Spec.Containers {
		log, err := cluster.ContainerLog(ctx, client.ObjectKeyFromObject(pod), container.Name)
		if err != nil {
			return nil, err
		}
		label := "saw:    "
		if len(pod.Spec.Containers) > 1 {
			label = "saw in " + container.Name + ": "
		}
		lines = append(lines, indent(label, log)...)
	}
	return lines, nil
}

// claimNames are the claims that the pod has by now, in its order; the last is the one that the scheduler made for resources.limits.
func claimNames(pod *corev1.Pod) []string {
	made := map[string]*string{} // from templates
	for _, status := range pod.Status.ResourceClaimStatuses {
		made[status.Name] = status.ResourceClaimName
	}
	var names []string
	for _, claim := range pod.Spec.ResourceClaims {
		if name := cmp.Or(claim.ResourceClaimName, made[claim.Name]); name != nil {
			names = append(names, *name)
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		names = append(names, status.ResourceClaimName)
	}
	return names
}

// describe writes a device as nvidia-smi -L does, with the name that Kubernetes has for it. The monitor device is no model of GPU.
func describe(r resourceapi.DeviceRequestAllocationResult, device resourceapi.Device) string {
	text := func(name string) string {
		if a, ok := device.Attributes[resourceapi.QualifiedName(name)]; ok && a.StringValue != nil {
			return *a.StringValue
		}
		return "unknown " + name
	}
	if text("productName") == "" {
		return r.Device
	}
	return fmt.Sprintf("%s, %s (UUID: %s)", r.Device, text("productName"), text("uuid"))
}

// unschedulable is what the scheduler says about the pod.
func unschedulable(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}
