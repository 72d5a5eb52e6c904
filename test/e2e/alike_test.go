//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testPairs requests two matching GPUs where two non-matching ones are also free. The workstation has three cards of
// one model: the first two are connected by a bridge and on the same NUMA node.
func (s *suite) testPairs(t *testing.T) {
	node := s.node(t, "workstation")
	for _, tc := range []struct {
		name      string
		attribute resourceapi.FullyQualifiedName
		value     func(resourceapi.Device) string
	}{
		{"nvlink", resourceapi.FullyQualifiedName(*driver + "/nvlinkDomain"),
			func(d resourceapi.Device) string { return stringAttribute(d, "nvlinkDomain") }},
		{"numa", "resource.kubernetes.io/numaNode",
			func(d resourceapi.Device) string { return value(d.Attributes["resource.kubernetes.io/numaNode"]) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := s.gpus(t, node)
			if len(all) != 3 || tc.value(all[0]) != tc.value(all[1]) || tc.value(all[0]) == tc.value(all[2]) {
				t.Fatalf("want three GPUs, the first two alike:\n%s", text(node, all))
			}
			ns := s.namespace(t, tc.name)
			two := s.claimTemplate(t, ns, "two",
				resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{gpus("gpus", 2)}})
			pair := s.claimTemplate(t, ns, "pair", resourceapi.DeviceClaim{
				Requests:    []resourceapi.DeviceRequest{gpus("gpus", 2)},
				Constraints: []resourceapi.DeviceConstraint{{MatchAttribute: &tc.attribute}},
			})
			holder := s.pod(t, ns, "holder", onNode(node),
				withTemplate(s.claimTemplate(t, ns, "first", theGPU(all[0]))))
			s.running(t, holder)
			others := s.pod(t, ns, "others", onNode(node), withTemplate(two))
			s.running(t, others) // so two are free
			s.deletePod(t, others)
			waiting := s.pod(t, ns, "pair", onNode(node), withTemplate(pair))
			s.waitUnschedulable(t, waiting)
			s.deletePod(t, holder)
			got := s.names(t, s.running(t, waiting))
			if want := []string{all[0].Name, all[1].Name}; !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// testNextToNIC acts as a driver of network cards whose devices share a PCIe root with one GPU or with none.
func (s *suite) testNextToNIC(t *testing.T) {
	const nics = "nic.e2e.example.com"
	node := s.node(t, "workstation")
	all := s.gpus(t, node)
	beside := all[1] // without the NIC a claim gets all[0]
	ns := s.namespace(t, "nic")
	class := &resourceapi.DeviceClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceClass"},
		ObjectMeta: metav1.ObjectMeta{Name: nics},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
			{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + nics + "'"}}}},
	}
	const root = "resource.kubernetes.io/pcieRoot"
	slice := &resourceapi.ResourceSlice{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: nics},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: nics, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1,
				ResourceSliceCount: 1},
			Devices: []resourceapi.Device{
				{Name: "beside",
					Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{root: beside.Attributes[root],
						"port": {IntValue: new(int64(0))}}},
				{Name: "apart",
					Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{root: {StringValue: new(
						"pci0000:ff")}, "port": {IntValue: new(int64(1))}}},
			},
		},
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, o := range []client.Object{slice, class} {
			s.must(t, client.IgnoreNotFound(s.Delete(ctx, o)))
		}
	})
	s.must(t, s.ApplyTyped(t.Context(), class))
	plugin := s.pod(t, ns, "nic-driver", onNode(node), withArgs("nothing", nics), untilRegistered,
		withHostDirs("/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry"))
	_, err := s.WaitPod(t.Context(), soon, plugin, "ready", kube.Ready)
	s.must(t, err)
	s.must(t, s.ApplyTyped(t.Context(), slice)) // only now: the kubelet deletes slices of unregistered drivers

	atOneRoot := func(name, port string) string {
		attribute := resourceapi.FullyQualifiedName(root)
		nic := resourceapi.DeviceRequest{Name: "nic", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: nics,
			Selectors: []resourceapi.DeviceSelector{
				{CEL: &resourceapi.CELDeviceSelector{Expression: "device.attributes['" + nics + "'].port == " + port}},
			}}}
		return s.claimTemplate(t, ns, name, resourceapi.DeviceClaim{
			Requests:    []resourceapi.DeviceRequest{gpus("gpu", 1), nic},
			Constraints: []resourceapi.DeviceConstraint{{MatchAttribute: &attribute}},
		})
	}
	// All GPUs are free, but none is at this root.
	s.waitUnschedulable(t, s.pod(t, ns, "apart", withTemplate(atOneRoot("apart", "1"))))
	// Two GPUs are free, but not the one beside the NIC.
	holder := s.pod(t, ns, "holder", onNode(node), withTemplate(s.claimTemplate(t, ns, "holder", theGPU(beside))))
	s.running(t, holder)
	waiting := s.pod(t, ns, "beside", withTemplate(atOneRoot("beside", "0")))
	s.waitUnschedulable(t, waiting)
	s.deletePod(t, holder)
	if got, want := s.names(t, s.running(t, waiting)), []string{beside.Name, "beside"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	s.waitLog(t, waiting, seen([]resourceapi.Device{beside}))
}

// untilRegistered makes the pod ready when the kubelet has registered its driver.
func untilRegistered(p *corev1.PodSpec) {
	p.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"gpu-demo", "cat", "/tmp/registered"}}}}
}

// gpus requests count GPUs of the driver's class.
func gpus(name string, count int64, tolerations ...resourceapi.DeviceToleration) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: *driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
		Tolerations: tolerations}}
}

// theGPU requests one specific GPU.
func theGPU(device resourceapi.Device, tolerations ...resourceapi.DeviceToleration) resourceapi.DeviceClaim {
	request := gpus("gpu", 1, tolerations...)
	request.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: "device.attributes['" + *driver + "'].uuid == '" + stringAttribute(device, "uuid") + "'"}}}
	return resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request}}
}

// claimTemplate creates a template and returns its name.
func (s *suite) claimTemplate(t *testing.T, namespace, name string, claim resourceapi.DeviceClaim) string {
	t.Helper()
	s.must(t, s.ApplyTyped(t.Context(), &resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: claim}},
	}))
	return name
}

// names returns the devices allocated to the pod's only claim, in the order of the requests.
func (s *suite) names(t *testing.T, pod *corev1.Pod) []string {
	t.Helper()
	claim := s.claimOf(t, pod)
	if claim.Status.Allocation == nil {
		t.Fatalf("claim %s is not allocated", claim.Name)
	}
	var names []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		names = append(names, result.Device)
	}
	return names
}

// deletePod deletes a pod and waits until it and its claim no longer exist, so that its GPU is free.
func (s *suite) deletePod(t *testing.T, pod client.ObjectKey) {
	t.Helper()
	s.must(t, s.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name,
		Namespace: pod.Namespace}}))
	s.must(t, kube.Until(t.Context(), soon, "pod "+pod.Name+" and its claim to be gone",
		func(ctx context.Context) (bool, string, error) {
			var claims resourceapi.ResourceClaimList
			if err := s.List(ctx, &claims, client.InNamespace(pod.Namespace)); err != nil {
				return false, "", err
			}
			held := slices.ContainsFunc(claims.Items, func(c resourceapi.ResourceClaim) bool {
				owner := metav1.GetControllerOf(&c)
				return owner != nil && owner.Name == pod.Name
			})
			err := s.Get(ctx, pod, &corev1.Pod{})
			return !held && err != nil && client.IgnoreNotFound(err) == nil, "", client.IgnoreNotFound(err)
		}))
}

// waitUnschedulable waits until the scheduler has reported that no node can allocate the pod's claims.
func (s *suite) waitUnschedulable(t *testing.T, pod client.ObjectKey) {
	t.Helper()
	got, err := s.WaitPod(t.Context(), soon, pod, "unschedulable", unschedulable)
	s.must(t, err)
	for _, c := range got.Status.Conditions {
		if c.Type == corev1.PodScheduled && !strings.Contains(c.Message, "cannot allocate all claims") {
			t.Errorf("pod %s: got %q, want that the claims cannot be allocated", pod.Name, c.Message)
		}
	}
}
