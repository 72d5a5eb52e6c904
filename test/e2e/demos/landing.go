// SPDX-License-Identifier: Apache-2.0

package demos

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// address identifies a device as an allocation does.
type address struct{ driver, pool, device string }

// publishedDevices returns the devices in the slices of all drivers.
func publishedDevices(ctx context.Context, cluster *kube.Cluster) (map[address]resourceapi.Device, error) {
	var list resourceapi.ResourceSliceList
	if err := cluster.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list resource slices: %w", err)
	}
	devices := map[address]resourceapi.Device{}
	for _, slice := range list.Items {
		for _, device := range slice.Spec.Devices {
			devices[address{slice.Spec.Driver, slice.Spec.Pool.Name, device.Name}] = device
		}
	}
	return devices, nil
}

// reportPod reports the allocation of the pod's claims and the output of its container, or why it is not scheduled.
func reportPod(ctx context.Context, cluster *kube.Cluster, driver string, devices map[address]resourceapi.Device,
	pod *corev1.Pod) ([]string, error) {
	if pod.Spec.NodeName == "" {
		return append([]string{"landed: pod " + pod.Name + " nowhere, it is " + string(pod.Status.Phase)},
			indent("saw:    ", unschedulable(pod))...), nil
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
				describe(driver, r, devices[address{r.Driver, r.Pool, r.Device}])))
		}
		lines = append(lines, equalAttributes(devices, &claim)...)
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

// claimNames returns the names of the pod's existing claims, in its order; the last is the one that the scheduler
// created for resources.limits.
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

// equalAttributes reports the attributes that the claim's constraints made equal.
func equalAttributes(devices map[address]resourceapi.Device, claim *resourceapi.ResourceClaim) []string {
	var lines []string
	for _, constraint := range claim.Spec.Devices.Constraints {
		if constraint.MatchAttribute == nil {
			continue
		}
		var values []string
		for _, r := range claim.Status.Allocation.Devices.Results {
			request, _, _ := strings.Cut(r.Request, "/") // of an alternative
			if len(constraint.Requests) == 0 || slices.Contains(constraint.Requests, r.Request) ||
				slices.Contains(constraint.Requests, request) {
				values = append(values, attribute(r.Driver, devices[address{r.Driver, r.Pool, r.Device}],
					string(*constraint.MatchAttribute)))
			}
		}
		lines = append(lines, fmt.Sprintf("alike:  %s %s", *constraint.MatchAttribute,
			strings.Join(slices.Compact(values), ", ")))
	}
	return lines
}

// attribute returns the value of an attribute by its full name. A device may omit the domain if it is the driver's
// name.
func attribute(driver string, device resourceapi.Device, name string) string {
	a, ok := device.Attributes[resourceapi.QualifiedName(name)]
	if !ok {
		a = device.Attributes[resourceapi.QualifiedName(strings.TrimPrefix(name, driver+"/"))]
	}
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case a.VersionValue != nil:
		return *a.VersionValue
	case a.IntValue != nil:
		return fmt.Sprint(*a.IntValue)
	case a.BoolValue != nil:
		return fmt.Sprint(*a.BoolValue)
	}
	return "unknown"
}

// describe formats a device like nvidia-smi -L, plus its name in Kubernetes. The monitor device is no GPU.
func describe(driver string, r resourceapi.DeviceRequestAllocationResult, device resourceapi.Device) string {
	if r.Driver != driver && r.Driver != remote.Driver(driver) {
		return r.Device + " of " + r.Driver
	}
	text := func(name string) string { return attribute(driver, device, driver+"/"+name) }
	if text("type") == "monitor" {
		return r.Device
	}
	uuid := "UUID: " + text("uuid")
	if text("uuid") == r.Device { // what is made for the claim gets its UUID later
		uuid = "part of " + text("parentUUID")
	}
	line := fmt.Sprintf("%s, %s (%s)%s", r.Device, text("productName"), uuid, part(r, device))
	if r.Driver != driver {
		line += ", served by " + text("remoteNode")
	}
	return line
}

// part describes the allocated part of a GPU; empty for a whole GPU.
func part(r resourceapi.DeviceRequestAllocationResult, device resourceapi.Device) string {
	if shares, ok := r.ConsumedCapacity["shares"]; ok {
		all := device.Capacity["shares"].Value
		return fmt.Sprintf(", %s of its %s replicas", shares.String(), all.String())
	}
	var text string
	all := device.Capacity["memory"].Value
	if memory, ok := r.ConsumedCapacity["memory"]; ok && memory.Cmp(all) < 0 {
		text += fmt.Sprintf(", %s of its memory", memory.String())
	}
	if cores, ok := r.ConsumedCapacity["cores"]; ok && !cores.IsZero() {
		text += fmt.Sprintf(", %s %% of its multiprocessors", cores.String())
	}
	return text
}

// unschedulable returns the scheduler's message about the pod.
func unschedulable(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}
