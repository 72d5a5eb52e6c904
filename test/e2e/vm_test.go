//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testVirtualMachine gives GPUs to pods as KubeVirt's virt-controller renders them for the virtual machines of its
// tests with DRA (tests/compute/dra.go at commit 25fb9a74f8f8), with the class of this driver, and then to a container.
func (s *suite) testVirtualMachine(t *testing.T) {
	s.needs(t, slices.Concat([]string{"Kubernetes 1.37"}, sliceGates)...)
	node := s.node(t, machinesProfile)
	factory := s.simctl(t, s.plugin(t, node), "print")
	ns := s.namespace(t, "vm")
	const one, two = "pci0000:a5", "pci0000:35" // one GPU of the first is not for virtual machines
	at := map[string][]string{}                 // selectors of PCI addresses, by PCIe root
	for _, d := range s.published(t, node) {
		if stringAttribute(d, "type") == "vfio" {
			root := stringAttribute(d, "resource.kubernetes.io/pcieRoot")
			at[root] = append(at[root], attributeIs("resource.kubernetes.io", "pciBusID",
				stringAttribute(d, "resource.kubernetes.io/pciBusID")))
		}
	}
	if len(at[one]) != 1 || len(at[two]) != 2 {
		t.Fatalf("GPUs for virtual machines: got %q", at)
	}
	template := func(name string, claim resourceapi.DeviceClaim) corev1.PodResourceClaim {
		name = s.claimTemplate(t, ns, name, claim)
		return corev1.PodResourceClaim{Name: "vfio-gpu-claim", ResourceClaimTemplateName: &name}
	}
	ofRoot := attributeIs("resource.kubernetes.io", "pcieRoot", two)
	made := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "made-before", Namespace: ns},
		Spec: resourceapi.ResourceClaimSpec{Devices: vfioClaim(
			ofRoot + " && " + attributeIs(*driver, "pciVendorID", "10de"))}}
	s.must(t, s.Create(t.Context(), made))
	machines := []client.ObjectKey{
		s.launcher(t, ns, "bus-id", node, template("bus", vfioClaim(at[one][0])), 1),
		s.launcher(t, ns, "template", node, template("root", vfioClaim(ofRoot)), 1),
		s.launcher(t, ns, made.Name, node, corev1.PodResourceClaim{Name: made.Name, ResourceClaimName: &made.Name}, 1),
	}
	for _, pod := range machines {
		s.checkLauncher(t, s.running(t, pod), 1)
	}
	device := s.allocated(t, s.running(t, machines[0]))

	whole := s.pod(t, ns, "whole", onNode(node), withTemplate(s.templateFor(t, ns, "whole", resourceapi.DeviceRequest{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: *driver,
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: at[one][0]}}}}})))
	s.waitUnschedulable(t, whole)
	// The GPU that is not for virtual machines keeps its index, and so the configuration that shares it.
	other := s.pod(t, ns, "other", onNode(node), withTemplate(s.templateFor(t, ns, "replica", resourceapi.DeviceRequest{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "shared." + *driver}})))
	s.waitLog(t, other, seen([]resourceapi.Device{s.allocated(t, s.running(t, other))}))
	for _, pod := range machines[1:] {
		s.must(t, s.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: ns}}))
	}
	s.deletePod(t, machines[0])
	got := s.allocated(t, s.running(t, whole))
	if want := strings.TrimSuffix(device.Name, "-vfio"); got.Name != want {
		t.Errorf("after the virtual machine: got %s, want %s", got.Name, want)
	}
	s.waitLog(t, whole, seen([]resourceapi.Device{got}))
	s.deletePod(t, whole)
	s.deletePod(t, other)

	vendor := resourceapi.FullyQualifiedName(*driver + "/pciVendorID")
	three := vfioClaim(at[two][1], at[one][0], at[two][0])
	three.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &vendor,
		Requests: []string{vfioRequest(0), vfioRequest(1)}}}
	large := s.launcher(t, ns, "three-requests-and-match-attribute", node, template("three", three), 3)
	s.checkLauncher(t, s.running(t, large), 3)
	s.must(t, s.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: large.Name, Namespace: ns}},
		client.GracePeriodSeconds(0))) // it is killed
	s.must(t, kube.Until(t.Context(), soon, "all GPUs to be returned", func(context.Context) (bool, string, error) {
		now := s.simctl(t, s.plugin(t, node), "print")
		return now == factory, now, nil
	}))
}

func attributeIs(domain, name, value string) string {
	return fmt.Sprintf("device.attributes[%q].%s == %q", domain, name, value)
}

// vfioClaim has a request for each selector.
func vfioClaim(selectors ...string) (claim resourceapi.DeviceClaim) {
	for i, selector := range selectors {
		claim.Requests = append(claim.Requests, resourceapi.DeviceRequest{Name: vfioRequest(i),
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "vfio." + *driver,
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector}}}}})
	}
	return claim
}

func vfioRequest(i int) string { return fmt.Sprint("vfio-gpu-", i) }

// launcher creates a pod whose container names each request of the claim. Server-side apply refuses that.
func (s *suite) launcher(t *testing.T, namespace, name, node string, of corev1.PodResourceClaim,
	requests int) client.ObjectKey {
	t.Helper()
	compute := corev1.Container{Name: "compute", Image: s.image, Args: []string{"show", "--stay"}}
	for i := range requests {
		compute.Resources.Claims = append(compute.Resources.Claims,
			corev1.ResourceClaim{Name: of.Name, Request: vfioRequest(i)})
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "virt-launcher-" + name, Namespace: namespace},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{compute},
			NodeSelector:   map[string]string{corev1.LabelHostname: node},
			ResourceClaims: []corev1.PodResourceClaim{of}}}
	s.must(t, s.Create(t.Context(), pod))
	return client.ObjectKeyFromObject(pod)
}

// checkLauncher compares the container with the allocation of the pod's claim: the device nodes, and for each request
// the PCI address in its file of metadata.
func (s *suite) checkLauncher(t *testing.T, pod *corev1.Pod, requests int) {
	t.Helper()
	claim, key := s.claimOf(t, pod), client.ObjectKeyFromObject(pod)
	dir := "resourceclaimtemplates/" + pod.Spec.ResourceClaims[0].Name
	if pod.Spec.ResourceClaims[0].ResourceClaimName != nil {
		dir = "resourceclaims/" + claim.Name
	}
	nodes := []string{"/dev/vfio/vfio"}
	results := claim.Status.Allocation.Devices.Results
	if len(results) != requests {
		t.Errorf("got %d devices, want %d", len(results), requests)
	}
	for _, result := range results {
		pool := s.inPool(t, result.Pool)
		i := slices.IndexFunc(pool, func(d resourceapi.Device) bool { return d.Name == result.Device })
		if i < 0 {
			t.Fatalf("device %s is not published", result.Device)
		}
		nodes = append(nodes, fmt.Sprint("/dev/vfio/", intAttribute(pool[i], "iommuGroup")))
		bus := stringAttribute(pool[i], "resource.kubernetes.io/pciBusID")
		if got := s.metadataBus(t, key, dir, result.Request); got != bus {
			t.Errorf("request %s: got the PCI address %q, want %q", result.Request, got, bus)
		}
	}
	s.waitLog(t, key, "no nvidia-smi in this container\nno GPU device node in /dev\n")
	slices.Sort(nodes)
	if got := s.vfioNodes(t, key); !slices.Equal(got, nodes) {
		t.Errorf("device nodes: got %q, want %q", got, nodes)
	}
}

// vfioNodes returns the device nodes of VFIO in the pod's container, sorted.
func (s *suite) vfioNodes(t *testing.T, pod client.ObjectKey) (names []string) {
	t.Helper()
	for line := range strings.Lines(s.run(t, pod, "gpu-demo", "find", "/dev/vfio")) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// metadataBus returns the PCI address of the only device in the file of metadata of the request; dir is
// resourceclaimtemplates/NAME or resourceclaims/NAME.
func (s *suite) metadataBus(t *testing.T, pod client.ObjectKey, dir, request string) string {
	t.Helper()
	text := s.run(t, pod, "gpu-demo", "cat", "/var/run/kubernetes.io/dra-device-attributes/"+dir+"/"+request+"/"+
		*driver+"-metadata.json")
	var metadata struct {
		Requests []struct {
			Name    string
			Devices []struct {
				Attributes map[string]struct{ String string }
			}
		}
	}
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&metadata); err != nil {
		t.Fatalf("metadata %s: %v", text, err)
	}
	for _, r := range metadata.Requests {
		if r.Name == request && len(r.Devices) == 1 {
			return r.Devices[0].Attributes["resource.kubernetes.io/pciBusID"].String
		}
	}
	t.Fatalf("metadata: no request %s with one device in %s", request, text)
	return ""
}
