//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
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
