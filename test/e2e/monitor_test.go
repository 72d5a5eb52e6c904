//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// adminNamespace creates a namespace that allows admin access.
func (s *suite) adminNamespace(t *testing.T, name string) string {
	t.Helper()
	return s.labelled(t, name, map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"})
}

// monitorRequest requests the monitor device as the chart's policy requires.
func monitorRequest(name string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "monitor." + *driver, AdminAccess: ptr.To(true)}}
}

// templateFor creates a ResourceClaimTemplate with these requests and returns its name.
func (s *suite) templateFor(t *testing.T, namespace, name string, requests ...resourceapi.DeviceRequest) string {
	t.Helper()
	s.must(t, s.ApplyTyped(t.Context(), &resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: resourceapi.ResourceClaimTemplateSpec{
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
		},
	}))
	return name
}

// seen returns the output of a container that sees these GPUs.
func seen(devices []resourceapi.Device) string {
	gpus := slices.DeleteFunc(slices.Clone(devices), func(d resourceapi.Device) bool {
		return stringAttribute(d,
			"type") != "gpu"
	})
	slices.SortFunc(gpus, func(a, b resourceapi.Device) int {
		return cmp.Compare(intAttribute(a, "index"), intAttribute(b, "index"))
	})
	var listing, nodes strings.Builder
	for i, d := range gpus {
		fmt.Fprintf(&listing, "GPU %d: %s (UUID: %s)\n", i, stringAttribute(d, "productName"),
			stringAttribute(d, "uuid"))
		fmt.Fprintf(&nodes, "/dev/nvidia%d: allowed\n", intAttribute(d, "minor"))
	}
	return listing.String() + nodes.String()
}

// testMonitor runs monitors while all GPUs are allocated.
func (s *suite) testMonitor(t *testing.T) {
	node := s.node(t, "l40s-x4")
	devices := s.published(t, node)
	ns := s.adminNamespace(t, "monitor")
	one := s.template(t, ns, "one-gpu")
	worker := func(n int) client.ObjectKey {
		return s.pod(t, ns, fmt.Sprintf("worker-%d", n), onNode(node), withTemplate(one))
	}
	gpus := len(s.wholeGPUs(t, node))
	for n := range gpus {
		worker(n)
	}
	for n := range gpus {
		s.running(t, client.ObjectKey{Namespace: ns, Name: fmt.Sprintf("worker-%d", n)})
	}
	monitor := s.templateFor(t, ns, "monitor", monitorRequest("all"))
	both := s.templateFor(t, ns, "two-shares", monitorRequest("all"), monitorRequest("again"))
	monitors := map[string]string{"monitor-1": monitor, "monitor-2": monitor}
	lacks, err := s.Lacks(t.Context(), "DRAConsumableCapacity")
	s.must(t, err)
	if len(lacks) == 0 { // otherwise a device can be in a claim only once
		monitors["monitor-3"] = both
	}
	for name, template := range monitors {
		s.pod(t, ns, name, onNode(node), withTemplate(template))
	}
	for name := range monitors {
		s.waitLog(t, client.ObjectKey{Namespace: ns, Name: name}, seen(devices))
	}
	s.checkMonitorPool(t, node, client.ObjectKey{Namespace: ns, Name: "monitor-1"})
	// Monitors hold no GPUs: a released GPU goes to the next worker.
	first := s.running(t, client.ObjectKey{Namespace: ns, Name: "worker-0"})
	freed := s.allocated(t, first)
	s.must(t, s.Delete(t.Context(), first))
	next := worker(gpus)
	if got := s.allocated(t, s.running(t, next)); got.Name != freed.Name {
		t.Errorf("got %s, want %s, which was given back", got.Name, freed.Name)
	}
	s.waitLog(t, next, seen([]resourceapi.Device{freed}))
}

// checkMonitorPool checks that the monitor device is the only one of its pool, which the pod's claim and its status
// name, and that the pool of the node has only GPUs and partitions.
func (s *suite) checkMonitorPool(t *testing.T, node string, pod client.ObjectKey) {
	t.Helper()
	pool := node + "/monitor"
	claim := s.claimOf(t, s.running(t, pod))
	if got := claim.Status.Allocation.Devices.Results[0].Pool; got != pool {
		t.Errorf("the claim: got pool %s, want %s", got, pool)
	}
	s.must(t, kube.Until(t.Context(), soon, "the pool in the status of the claim",
		func(ctx context.Context) (bool, string, error) {
			err := s.Get(ctx, client.ObjectKeyFromObject(&claim), &claim)
			devices := claim.Status.Devices
			return err == nil && len(devices) == 1 && devices[0].Pool == pool, fmt.Sprintf("%+v", devices), err
		}))
	if got := s.inPool(t, pool); len(got) != 1 || stringAttribute(got[0], "type") != "monitor" {
		t.Errorf("pool %s has %d devices, want the monitor device", pool, len(got))
	}
	for _, d := range s.inPool(t, node) {
		if got := stringAttribute(d, "type"); got == "monitor" {
			t.Errorf("pool %s has %s of type %s", node, d.Name, got)
		}
	}
}

// testMonitorLater plugs in a GPU again while a monitor runs.
func (s *suite) testMonitorLater(t *testing.T) {
	node := s.node(t, brokenProfile)
	all := s.gpus(t, node)
	broken := all[0].Name
	s.simctl(t, s.plugin(t, node), "fail", broken, "all", "ERROR_UNKNOWN")
	healed := false
	heal := func() {
		if !healed {
			s.simctl(t, s.plugin(t, node), "heal", broken)
			s.waitHealthy(t, node, len(all))
		}
		healed = true
	}
	defer heal()
	s.waitHealthy(t, node, len(all)-1)

	ns := s.adminNamespace(t, "monitor-later")
	template := s.templateFor(t, ns, "monitor", monitorRequest("all"))
	before := s.pod(t, ns, "before", onNode(node), withTemplate(template), withArgs("show"), restartAlways)
	s.waitLog(t, before, seen(all[1:]))
	heal()
	s.waitLog(t, s.pod(t, ns, "after", onNode(node), withTemplate(template)), seen(all))
	s.waitLog(t, before, seen(all)) // its container restarts repeatedly, without a new Prepare of its claim
}

func restartAlways(p *corev1.PodSpec) { p.RestartPolicy = corev1.RestartPolicyAlways }

// testMonitorPolicy requests the monitor device in ways that the policy rejects.
func (s *suite) testMonitorPolicy(t *testing.T) {
	ns := s.adminNamespace(t, "monitor-policy")
	class := "monitor." + *driver
	typeIs := func(expression string) []resourceapi.DeviceSelector {
		return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	}
	monitorType := "device.attributes['" + *driver + "'].type == 'monitor'"
	exactly := func(class string, admin *bool, selectors []resourceapi.DeviceSelector) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class,
			AdminAccess: admin, Selectors: selectors}}
	}
	first := func(subs ...resourceapi.DeviceSubRequest) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: "r", FirstAvailable: subs}
	}
	t.Run("a claim without requests", func(t *testing.T) {
		s.tryCreate(t, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "try-", Namespace: ns}},
			false)
	})
	for _, tc := range []struct {
		name    string
		request resourceapi.DeviceRequest
		refused bool
	}{
		{"the class with adminAccess", exactly(class, ptr.To(true), nil), false},
		{"the class without adminAccess", exactly(class, nil, nil), true},
		{"the class with adminAccess: false", exactly(class, ptr.To(false), nil), true},
		{"the class as an alternative", first(resourceapi.DeviceSubRequest{Name: "a", DeviceClassName: *driver},
			resourceapi.DeviceSubRequest{Name: "b", DeviceClassName: class}), true},
		{"another class and a selector for the type", exactly("any", nil, typeIs(monitorType)), true},
		{"a selector that begins with the driver and goes on",
			exactly("any", nil, typeIs("device.driver == '"+*driver+"' && "+monitorType+" && true")), true},
		{"a selector for the type with adminAccess", exactly("any", ptr.To(true), typeIs(monitorType)), false},
		{"a selector that could select other devices too", exactly("any", nil, typeIs(monitorType+" || true")), false},
		{"a selector for GPUs", exactly(*driver, nil, typeIs("device.attributes['"+*driver+"'].type == 'gpu'")), false},
		{"alternatives of GPUs", first(resourceapi.DeviceSubRequest{Name: "a", DeviceClassName: *driver}), false},
	} {
		spec := resourceapi.ResourceClaimSpec{
			Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{tc.request}},
		}
		meta := metav1.ObjectMeta{GenerateName: "try-", Namespace: ns}
		t.Run("claim: "+tc.name, func(t *testing.T) {
			s.tryCreate(t, &resourceapi.ResourceClaim{ObjectMeta: meta, Spec: spec}, tc.refused, "adminAccess: true",
				"the class "+*driver)
		})
		t.Run("template: "+tc.name, func(t *testing.T) {
			s.tryCreate(t, &resourceapi.ResourceClaimTemplate{ObjectMeta: meta,
				Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}},
				tc.refused, "adminAccess: true", "the class "+*driver)
		})
	}
	extended := func(name string) corev1.Container {
		return corev1.Container{Name: "c", Image: s.image, Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceName("deviceclass.resource.kubernetes.io/" +
				name): resource.MustParse("1")}}}
	}
	plain := corev1.Container{Name: "plain", Image: s.image}
	for _, tc := range []struct {
		name    string
		spec    corev1.PodSpec
		refused bool
	}{
		{"a container", corev1.PodSpec{Containers: []corev1.Container{plain, extended(class)}}, true},
		{"an init container", corev1.PodSpec{InitContainers: []corev1.Container{extended(class)},
			Containers: []corev1.Container{plain}}, true},
		{"a container with a GPU", corev1.PodSpec{Containers: []corev1.Container{plain, extended(*driver)}}, false},
		{"a plain pod", corev1.PodSpec{Containers: []corev1.Container{plain}}, false},
	} {
		t.Run("extended resource: "+tc.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "try-", Namespace: ns}, Spec: tc.spec}
			s.tryCreate(t, pod, tc.refused, "container c asks for", "ResourceClaim with adminAccess: true")
		})
	}
}

// tryCreate creates the object in a dry run, and checks that a rejection gives the reasons.
func (s *suite) tryCreate(t *testing.T, object client.Object, refused bool, reasons ...string) {
	t.Helper()
	err := s.Create(t.Context(), object, client.DryRunAll)
	switch {
	case !refused && err != nil:
		t.Errorf("got error %v, want none", err)
	case refused && (!apierrors.IsForbidden(err) || !containsAll(err.Error(), reasons)):
		t.Errorf("got error %v, want a refusal with %q", err, reasons)
	}
}

// testMonitorRefused bypasses the policy with its own class and an opaque selector: the plugin rejects the claim.
func (s *suite) testMonitorRefused(t *testing.T) {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-any-"},
		Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{
				{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + *driver + "'"}},
			}}}
	s.must(t, s.Create(t.Context(), class))
	t.Cleanup(func() { s.must(t, s.Delete(context.WithoutCancel(t.Context()), class)) })
	ns := s.namespaceWithoutWebhooks(t, "monitor-refused")
	template := s.templateFor(t, ns, "monitor", resourceapi.DeviceRequest{Name: "all",
		Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class.Name,
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: "'monitor' == device.attributes['" + *driver + "'].type"}}}}})
	pod := s.pod(t, ns, "exporter", withTemplate(template))
	s.waitRefused(t, pod, []string{"device monitor gives every GPU of the node", "adminAccess: true",
		resourceapi.DRAAdminNamespaceLabelKey + "=true"})

	var got corev1.Pod
	s.must(t, s.Get(t.Context(), pod, &got))
	claim := s.claimOf(t, &got)
	s.must(t, s.TryAgain(t.Context(), pod))
	s.must(t, kube.Until(t.Context(), soon, "the same event again, counted in the first",
		func(ctx context.Context) (bool, string, error) {
			var events corev1.EventList
			err := s.List(ctx, &events, client.InNamespace(ns), client.MatchingFields{"involvedObject.name": claim.Name,
				"reason": "PrepareFailed"})
			counted := len(events.Items) == 1 && events.Items[0].Series != nil
			if err != nil {
				return false, "", err
			}
			return counted, fmt.Sprintf("%d events", len(events.Items)), nil
		}))
}
