//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testVirtualMachine gives a GPU to a pod as a virtual machine needs it, and then to a container.
func (s *suite) testVirtualMachine(t *testing.T) {
	s.needs(t, slices.Concat([]string{"Kubernetes 1.37"}, sliceGates)...)
	node := s.node(t, machinesProfile)
	ns := s.namespace(t, "vm")
	vm := s.pod(t, ns, "vm", onNode(node), withTemplate(s.templateFor(t, ns, "vm", resourceapi.DeviceRequest{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "vfio." + *driver}})))
	device := s.allocated(t, s.running(t, vm))
	group, bus := intAttribute(device, "iommuGroup"), stringAttribute(device, "resource.kubernetes.io/pciBusID")

	s.waitLog(t, vm, "no nvidia-smi in this container\nno GPU device node in /dev\n")
	nodes := s.run(t, vm, "gpu-demo", "find", "/dev/vfio")
	var names []string
	for line := range strings.Lines(nodes) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		names = append(names, name)
	}
	if want := []string{fmt.Sprint("/dev/vfio/", group), "/dev/vfio/vfio"}; !slices.Equal(names, want) {
		t.Errorf("device nodes: got %q, want %q", names, want)
	}
	metadata := s.run(t, vm, "gpu-demo", "cat", "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/"+
		"gpu/gpu/"+*driver+"-metadata.json")
	if !strings.Contains(metadata, `"`+bus+`"`) || !strings.Contains(metadata, `"resource.kubernetes.io/pciBusID"`) {
		t.Errorf("metadata: no PCI address %s in %s", bus, metadata)
	}

	whole := s.pod(t, ns, "whole", onNode(node), withTemplate(s.templateFor(t, ns, "whole", resourceapi.DeviceRequest{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: *driver,
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(
				"device.attributes['resource.kubernetes.io'].pciBusID == '%s'", bus)}}}}})))
	s.waitUnschedulable(t, whole)
	other := s.pod(t, ns, "other", onNode(node), withTemplate(s.template(t, ns, "any")))
	s.waitLog(t, other, seen([]resourceapi.Device{s.allocated(t, s.running(t, other))}))
	s.deletePod(t, vm)
	got := s.allocated(t, s.running(t, whole))
	if want := strings.TrimSuffix(device.Name, "-vfio"); got.Name != want {
		t.Errorf("after the virtual machine: got %s, want %s", got.Name, want)
	}
	s.waitLog(t, whole, seen([]resourceapi.Device{got}))
	s.deletePod(t, client.ObjectKey{Namespace: ns, Name: "other"})
}

// testVirtualMachineShapes runs pods with claims of the shapes that KubeVirt tests with: tests/compute/dra.go.
func (s *suite) testVirtualMachineShapes(t *testing.T) {
	s.needs(t, slices.Concat([]string{"Kubernetes 1.37"}, sliceGates)...)
	node := s.node(t, "l40s-x4")
	ns := s.namespace(t, "vms")
	vfio := func(name string) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "vfio." + *driver, Selectors: []resourceapi.DeviceSelector{{
				CEL: &resourceapi.CELDeviceSelector{
					Expression: "device.attributes['" + *driver + "'].pciVendorID == '10de'"},
			}}}}
	}
	one := resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{vfio("vfio-gpu")}}
	s.claimTemplate(t, ns, "one", one)
	s.claimTemplate(t, ns, "pair", resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{vfio("vfio-gpu-0"), vfio("vfio-gpu-1")},
		Constraints: []resourceapi.DeviceConstraint{{Requests: []string{"vfio-gpu-0", "vfio-gpu-1"},
			MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(*driver + "/pciDeviceID"))}}})
	s.claimTemplate(t, ns, "three", resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{vfio("vfio-gpu-0"), vfio("vfio-gpu-1"), vfio("vfio-gpu-2")}})
	s.must(t, s.ApplyTyped(t.Context(), &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: "created", Namespace: ns},
		Spec:       resourceapi.ResourceClaimSpec{Devices: one}}))
	type shape struct {
		pod, claim string
		template   bool
		requests   []string
	}
	for _, together := range [][]shape{ // the node has four GPUs
		{{"first", "one", true, []string{"vfio-gpu"}}, {"second", "one", true, []string{"vfio-gpu"}},
			{"pair", "pair", true, []string{"vfio-gpu-0", "vfio-gpu-1"}}},
		{{"created", "created", false, []string{"vfio-gpu"}},
			{"three", "three", true, []string{"vfio-gpu-0", "vfio-gpu-1", "vfio-gpu-2"}}},
	} {
		var pods []client.ObjectKey
		for _, of := range together {
			pods = append(pods, s.pod(t, ns, of.pod, onNode(node), func(p *corev1.PodSpec) {
				claim := corev1.PodResourceClaim{Name: "vfio-gpu-claim", ResourceClaimName: &of.claim}
				if of.template {
					claim.ResourceClaimName, claim.ResourceClaimTemplateName = nil, &of.claim
				}
				p.ResourceClaims = []corev1.PodResourceClaim{claim}
				for _, request := range of.requests { // as of virt-launcher
					p.Containers[0].Resources.Claims = append(p.Containers[0].Resources.Claims,
						corev1.ResourceClaim{Name: claim.Name, Request: request})
				}
			}))
		}
		groups := map[string]bool{}
		for i, of := range together {
			s.running(t, pods[i])
			nodes := strings.Fields(s.run(t, pods[i], "gpu-demo", "find", "/dev/vfio"))
			for _, path := range nodes {
				if strings.HasPrefix(path, "/dev/vfio/") && path != "/dev/vfio/vfio" {
					groups[path] = true
				}
			}
			for _, request := range of.requests {
				path := "resourceclaimtemplates/vfio-gpu-claim"
				if !of.template {
					path = "resourceclaims/" + of.claim
				}
				metadata := s.run(t, pods[i], "gpu-demo", "cat", fmt.Sprintf(
					"/var/run/kubernetes.io/dra-device-attributes/%s/%s/%s-metadata.json", path, request, *driver))
				if !strings.Contains(metadata, `"resource.kubernetes.io/pciBusID"`) {
					t.Errorf("pod %s, request %s: no PCI address in %s", of.pod, request, metadata)
				}
			}
		}
		if len(groups) != 4 {
			t.Errorf("got the IOMMU groups %v, want four", groups)
		}
		for _, pod := range pods {
			s.deletePod(t, pod)
		}
	}
}
