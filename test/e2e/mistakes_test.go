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
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testMistakes makes the mistakes of the first day: each has a warning or a refusal when the claim is created, or an
// event of the pod that names what was meant, and kubectl gpu why agrees.
func (s *suite) testMistakes(t *testing.T) {
	s.needs(t, sharesOfMIG...)
	ns := s.namespace(t, "mistakes")
	other := s.namespace(t, "mistakes-elsewhere")
	selector := "selectors: [{cel: {expression: \"%s\"}}]"
	attribute := "device.attributes['" + *driver + "']."
	for _, tc := range []struct {
		name, class, more, devices string // of the request, and of spec.devices
		refused                    []string
		warned                     string
	}{
		{"a class of another domain", "gpu.nvidia.org", "", "", nil, "did you mean " + *driver + "?"},
		{"a profile that does not exist", "mig-5g.50gb.nvidia.com", "", "", nil, "the nearest that is offered is mig-"},
		{"a fraction of cores", *driver, "capacity: {requests: {memory: 5Gi, cores: 300m}}", "",
			[]string{"requests[cores]", "did you mean 30?"}, ""},
		{"memory without a unit", *driver, "capacity: {requests: {memory: 5}}", "", nil, "5 bytes of memory"},
		{"cores without memory", *driver, "capacity: {requests: {cores: 30}}", "", nil, "without memory, the claim " +
			"gets all"},
		{"an attribute", *driver, fmt.Sprintf(selector, attribute+"product == 'NVIDIA L40S'"), "", nil,
			"no device has the attribute product; did you mean device.attributes"},
		{"a product", *driver, fmt.Sprintf(selector, attribute+"productName == 'L40S'"), "", nil,
			`no device has the productName "L40S"; did you mean "NVIDIA L40S"?`},
		{"more memory than there is", *driver, fmt.Sprintf(selector, "device.capacity['"+*driver+
			"'].memory.compareTo(quantity('400Gi')) >= 0"), "", nil, "the most is 81559Mi"},
		{"more GPUs than a node has", *driver, "count: 9", "", nil, "no node has more than 8"},
		{"an attribute of a constraint", *driver, "count: 2", ", constraints: [{matchAttribute: " + *driver +
			"/nvlinkdomain}]", nil, "did you mean " + *driver + "/nvlinkDomain?"},
		{"a driver", *driver, "", ", config: [{opaque: {driver: nvidia.com, parameters: {apiVersion: " +
			"resource.nvidia.com/v1beta1, kind: GpuConfig}}}]", nil, "so the driver " + *driver + " ignores it"},
		{"a field", *driver, "", ", config: [{opaque: {driver: " + *driver + ", parameters: {apiVersion: " +
			"resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {stratgy: MPS}}}}]",
			[]string{"unknown field; did you mean strategy?"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			more := tc.more
			if more != "" {
				more = ", " + more
			}
			claim := s.parsed(t, fmt.Sprintf(`{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {generateName: try-, namespace: %s},
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: %s%s}}]%s}}}`, ns, tc.class, more, tc.devices))
			warnings := s.Warnings()
			s.tryCreate(t, claim, tc.refused != nil, tc.refused...)
			if got := strings.Join(warnings(), "\n"); !strings.Contains(got, tc.warned) {
				t.Errorf("got warnings %q, want %q", got, tc.warned)
			}
		})
	}
	t.Run("events of pods", func(t *testing.T) { s.mistakenPods(t, ns, other) })
}

// mistakenPods creates pods that wait for what does not exist.
func (s *suite) mistakenPods(t *testing.T, ns, other string) {
	if len(s.controllers(t)) == 0 {
		t.Skip("no controller is installed, so no event says why pods wait")
	}
	user := s.kubectlUser(t, ns)
	shared := &resourceapi.ResourceClaim{}
	shared.Name, shared.Namespace = "shared", other
	shared.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu",
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: *driver}}}
	s.must(t, s.Create(t.Context(), shared))
	s.template(t, ns, "one-gpu")
	extended := func(p *corev1.PodSpec) {
		p.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/mig-5g.50gb": resource.MustParse("1")}
	}
	missing := s.templateFor(t, ns, "no-class", resourceapi.DeviceRequest{Name: "gpu",
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.org"}})
	tests := []struct {
		name   string
		option podOption
		want   []string
	}{
		{"of-no-claim", withClaim("shard"), []string{"claim shard does not exist in namespace " + ns}},
		{"of-another-namespace", withClaim("shared"), []string{"claim shared does not exist in namespace " + ns,
			"a pod uses only claims of its own namespace"}},
		{"of-no-template", withTemplate("one-gpus"), []string{"template one-gpus of its claim gpu does not exist",
			"one-gpu?"}},
		{"of-no-class", withTemplate(missing), []string{"gpu.nvidia.org, which does not exist", "gpu.nvidia.com"}},
		{"of-no-resource", extended, []string{"no node offers nvidia.com/mig-5g.50gb"}},
	}
	pods := make([]client.ObjectKey, len(tests)) // all at once: each waits for a while before the controller tells it
	for i, tc := range tests {
		pods[i] = s.pod(t, ns, tc.name, tc.option)
	}
	for i, tc := range tests {
		pod := pods[i]
		s.waitEvent(t, pod, append(slices.Clone(tc.want), "NotAllocated: ")...)
		text, err := kubectlGPU(t.Context(), "why", pod.Name, "-n", ns, "--as", user)
		s.must(t, err)
		first, _, _ := strings.Cut(text, "\n")
		if !containsAll(first, tc.want) {
			t.Errorf("%s: kubectl gpu why says first %q, want %q", tc.name, first, tc.want)
		}
	}

	idle := s.pod(t, ns, "idle", withTemplate("one-gpu"), func(
		p *corev1.PodSpec) {
		p.Containers[0].Resources.Claims = nil
	})
	text, err := kubectlGPU(t.Context(), "why", idle.Name, "-n", ns, "--as", user)
	s.must(t, err)
	if want := "container main does not name claim gpu in resources.claims"; !strings.Contains(text, want) {
		t.Errorf("a container without its claim: got %q, want %q", text, want)
	}
}
