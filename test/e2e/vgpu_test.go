//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// vgpuProfile is the profile of the node with vGPUs. No other test uses it.
const vgpuProfile = "a16-x4"

// testVGPU gives a vGPU that an administrator has made to a pod, and one that the driver makes. Its GPU is not given as
// a whole until it is gone.
func (s *suite) testVGPU(t *testing.T) {
	s.needs(t, slices.Concat([]string{"Kubernetes 1.37"}, sliceGates)...)
	const parent, uuid = "gpu-40-00-0", "6d8ba0b6-2d0c-4c5e-9a31-2f6c3c2a5d10"
	node := s.node(t, vgpuProfile)
	ns := s.namespace(t, "vgpu")
	plugin := s.plugin(t, node)
	s.simctl(t, plugin, "vgpu", parent, "A16-8Q", uuid)
	t.Cleanup(func() { // when no pod has it
		ctx := context.WithoutCancel(t.Context())
		s.must(t, s.Empty(ctx, soon, ns))
		_, err := s.Simctl(ctx, client.ObjectKeyFromObject(plugin), "vgpu", "remove", uuid)
		s.must(t, err)
	})
	pod := func(name, condition string) client.ObjectKey {
		return s.pod(t, ns, name, onNode(node), withTemplate(s.templateFor(t, ns, name, resourceapi.DeviceRequest{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "vgpu." + strings.TrimPrefix(*driver, "gpu."),
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
					Expression: fmt.Sprintf("device.attributes['%s'].%s", *driver, condition)}}}}})))
	}
	made := pod("made", "profile == 'A16-4Q'")
	existing := pod("existing", "mdevUUID == '"+uuid+"'")

	one := s.allocated(t, s.running(t, made))
	s.waitLog(t, made, "no nvidia-smi in this container\nno GPU device node in /dev\n")
	if nodes := s.run(t, made, "gpu-demo", "find", "/dev/vfio"); strings.Count(nodes, "\n") != 2 ||
		!strings.Contains(nodes, "/dev/vfio/vfio ") {
		t.Errorf("device nodes: got %s, want a group and /dev/vfio/vfio", nodes)
	}
	metadata := func(pod client.ObjectKey) string {
		return s.run(t, pod, "gpu-demo", "cat", "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/"+
			"gpu/gpu/"+*driver+"-metadata.json")
	}
	if text := metadata(made); !strings.Contains(text, `"mdevUUID"`) || strings.Contains(text, `"mdevUUID":{"string":""}`) {
		t.Errorf("metadata: no UUID in %s", text)
	}
	two := s.allocated(t, s.running(t, existing))
	if want := parent + "-vgpu-" + uuid; two.Name != want {
		t.Errorf("got %s, want %s", two.Name, want)
	}
	group := fmt.Sprint("/dev/vfio/", intAttribute(two, "iommuGroup"), " ")
	if nodes := s.run(t, existing, "gpu-demo", "find", "/dev/vfio"); !strings.Contains(nodes, group) {
		t.Errorf("device nodes: got %s, want %s", nodes, group)
	}
	if text := metadata(existing); !strings.Contains(text, `"`+uuid+`"`) {
		t.Errorf("metadata: no UUID %s in %s", uuid, text)
	}

	bus := stringAttribute(one, "resource.kubernetes.io/pciBusID")
	whole := s.pod(t, ns, "whole", onNode(node), withTemplate(s.templateFor(t, ns, "whole", resourceapi.DeviceRequest{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: *driver,
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(
				"device.attributes['resource.kubernetes.io'].pciBusID == '%s'", bus)}}}}})))
	s.waitUnschedulable(t, whole)
	s.deletePod(t, made)
	got := s.allocated(t, s.running(t, whole))
	if want, _, _ := strings.Cut(one.Name, "-vgpu-"); got.Name != want {
		t.Errorf("after the virtual machine: got %s, want %s", got.Name, want)
	}
	s.waitLog(t, whole, seen([]resourceapi.Device{got}))
}
