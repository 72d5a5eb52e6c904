//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// share requests a share of a GPU of that model.
func share(name, model, memory, cores string) resourceapi.DeviceRequest {
	requests := map[resourceapi.QualifiedName]resource.Quantity{}
	for capacity, amount := range map[resourceapi.QualifiedName]string{"memory": memory, "cores": cores} {
		if amount != "" {
			requests[capacity] = resource.MustParse(amount)
		}
	}
	request := resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: *driver,
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.attributes['%s'].productName == '%s'", *driver, model)}}}}}
	if len(requests) > 0 {
		request.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: requests}
	}
	return request
}

// configured creates a template for one request with a GpuConfig.
func (s *suite) configured(t *testing.T, namespace, name string, request resourceapi.DeviceRequest,
	sharing string) string {
	t.Helper()
	s.must(t, s.ApplyTyped(t.Context(), &resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{
			Devices: resourceapi.DeviceClaim{
				Requests: []resourceapi.DeviceRequest{request},
				Config: []resourceapi.DeviceClaimConfiguration{opaque(*driver,
					`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": `+sharing+`}`)},
			}}},
	}))
	return name
}

func asUser(uid int64) podOption {
	return func(p *corev1.PodSpec) { p.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &uid} }
}

// h100 is the model of a card that the node "mixed" has once.
const h100 = "NVIDIA H100 PCIe"

// hardware returns simctl's state of a GPU and its MPS daemon, and the supervisor's state of the daemon.
func (s *suite) hardware(t *testing.T, node, device string) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(s.simctl(t, s.plugin(t, node), "print")) {
		if strings.HasPrefix(line, device) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}

// waitFactory waits until a GPU is in its default state.
func (s *suite) waitFactory(t *testing.T, node, device, factory string) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, device+" to be as it came from the factory",
		func(context.Context) (bool, string, error) {
			is := s.hardware(t, node, device)
			return is == factory, is, nil
		}))
}

// testShares runs pods of several namespaces and users on one card.
func (s *suite) testShares(t *testing.T) {
	s.needs(t, sharesOfMIG...)
	node := s.node(t, "mixed")
	device := s.gpus(t, node)[0].Name
	factory := s.hardware(t, node, device)
	first, second := s.namespace(t, "shares"), s.namespace(t, "shares-too")
	var pods []client.ObjectKey
	for i, ns := range []string{first, second} {
		template := s.templateFor(t, ns, "share", share("gpu", h100, "5Gi", "30"))
		pods = append(pods, s.pod(t, ns, "worker", withTemplate(template), withArgs("alloc", "4Gi", "--stay"),
			asUser(int64(1000+i))))
	}
	uuid := stringAttribute(s.gpus(t, node)[0], "uuid")
	for _, pod := range pods {
		if got := s.allocated(t, s.running(t, pod)).Name; got != device {
			t.Errorf("%s: got %s, want %s", pod, got, device)
		}
		s.waitLog(t, pod, fmt.Sprintf("granted 4096MiB of %s, limit 5120MiB, threads 30%%\n", uuid))
	}
	if got := s.hardware(t, node, device); !strings.Contains(got, "mode=Exclusive_Process") {
		t.Errorf("got %q, want a GPU that only MPS gets at", got)
	}
	whole := s.pod(t, first, "whole", withTemplate(s.templateFor(t, first, "whole", share("gpu", h100, "", ""))))
	if _, err := s.WaitPod(t.Context(), soon, whole, "unschedulable", unschedulable); err != nil {
		t.Errorf("a card with shares was given to a claim for all of it: %v", err)
	}
	over := s.pod(t, second, "over", withTemplate(s.templateFor(t, second, "share", share("gpu", h100, "5Gi", "30"))),
		withArgs("alloc", "5121Mi"))
	_, err := s.WaitPod(t.Context(), soon, over, "failed",
		func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	s.must(t, err)
	// One pod leaves without effect on the others.
	s.must(t, s.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pods[0].Name, Namespace: first}}))
	s.must(t, s.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: over.Name, Namespace: second}}))
	if got := s.run(t, pods[1], "gpu-demo", "alloc", "512Mi"); !strings.HasPrefix(got, "granted 512MiB") {
		t.Errorf("after another sharer left: got %q, want memory", got)
	}
	s.must(t, s.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pods[1].Name, Namespace: second}}))
	s.running(t, whole) // the card is free, in its default state
	s.waitFactory(t, node, device, factory)
}

// testSharesOfOneClaim runs containers with a share each.
func (s *suite) testSharesOfOneClaim(t *testing.T) {
	s.needs(t, sharesOfMIG...)
	ns := s.namespace(t, "shares-of-one")
	one := s.templateFor(t, ns, "one-card", share("small", h100, "5Gi", "30"), share("large", h100, "6Gi", ""))
	apart := func(p *corev1.PodSpec) {
		again := *p.Containers[0].DeepCopy()
		again.Name = "large"
		p.Containers = append(p.Containers, again)
		p.Containers[0].Resources.Claims[0].Request = "small"
		p.Containers[1].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu", Request: "large"}}
	}
	pod := s.pod(t, ns, "apart", withTemplate(one), withArgs("probe", "--stay"), apart)
	s.running(t, pod)
	for container, want := range map[string]string{"main": "5120 MiB: granted\n5121 MiB: CUDA_ERROR_OUT_OF_MEMORY",
		"large": "6144 MiB: granted\n6145 MiB: CUDA_ERROR_OUT_OF_MEMORY"} {
		s.must(t, kube.Until(t.Context(), soon, "the limits of "+container, func(ctx context.Context) (bool, string,
			error) {
			got, err := s.ContainerLog(ctx, pod, container)
			return strings.Contains(got, want), got, err
		}))
	}
	// A process has one set of limits and connects to one daemon.
	for name, template := range map[string]string{
		"together": one,
		"two-daemons": s.templateFor(t, ns, "two-cards", share("small", h100, "5Gi", ""),
			share("large", "NVIDIA L40S", "5Gi", "")),
	} {
		s.waitRefused(t, s.pod(t, ns, name, withTemplate(template)), []string{"container main", "one set of limits",
			"configuration refused"})
	}
	// The same holds for shares of two claims.
	other := s.templateFor(t, ns, "other", share("gpu", "NVIDIA L40S", "20Gi", ""))
	alsoOther := func(p *corev1.PodSpec) {
		p.ResourceClaims = append(p.ResourceClaims, corev1.PodResourceClaim{Name: "other",
			ResourceClaimTemplateName: &other})
		p.Containers[0].Resources.Claims = append(p.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: "other"})
	}
	small := s.templateFor(t, ns, "small", share("gpu", h100, "1Gi", ""))
	warnings := s.Warnings()
	s.waitRefused(t, s.pod(t, ns, "two-claims", withTemplate(small), alsoOther),
		[]string{"container main", "it also uses device", "configuration refused"})
	// Who creates the pod is told at once.
	const want = "its node refuses it: container main: it also uses"
	if got := strings.Join(warnings(), "\n"); !strings.Contains(got, want) {
		t.Errorf("got warnings %q, want %q", got, want)
	}
}

// testSharedMemory: containers with a share have the size-limited /dev/shm of their daemon instead of their own, also
// where they mount an emptyDir there.
func (s *suite) testSharedMemory(t *testing.T) {
	s.needs(t, sharesOfMIG...)
	ns := s.namespace(t, "shared-memory")
	template := s.templateFor(t, ns, "share", share("gpu", h100, "1Gi", ""))
	own := func(source corev1.VolumeSource) func(p *corev1.PodSpec) {
		return func(p *corev1.PodSpec) {
			p.Volumes = append(p.Volumes, corev1.Volume{Name: "shm", VolumeSource: source})
			p.Containers[0].VolumeMounts = append(p.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "shm",
				MountPath: "/dev/shm"})
		}
	}
	empty := own(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}})
	for _, pod := range []client.ObjectKey{
		s.pod(t, ns, "worker", withTemplate(template), withArgs("probe", "--stay")),
		s.pod(t, ns, "own", withTemplate(template), withArgs("probe", "--stay"), empty),
	} {
		s.running(t, pod)
		mounts := s.run(t, pod, "gpu-demo", "cat", "/proc/mounts")
		for _, want := range []string{`(?m)^mps /dev/shm tmpfs rw,nosuid,nodev.*size=1048576k`,
			`(?m)^mps \S+/mps/\S+/pipe tmpfs rw,nosuid,nodev.*size=1024k`} {
			if !regexp.MustCompile(want).MatchString(mounts) {
				t.Errorf("the mounts of pod %s do not have %s:\n%s", pod.Name, want, mounts)
			}
		}
		if n := strings.Count(mounts, " /dev/shm "); n != 1 {
			t.Errorf("pod %s has %d mounts at /dev/shm, want one:\n%s", pod.Name, n, mounts)
		}
		s.waitLog(t, pod, "may use 100% of the multiprocessors\n1024 MiB: granted\n1025 MiB: "+
			"CUDA_ERROR_OUT_OF_MEMORY\n1 MiB without the MPS variables: CUDA_ERROR_DEVICE_UNAVAILABLE\n")
	}
	host := own(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev/shm"}})
	s.waitRefused(t, s.pod(t, ns, "host", withTemplate(template), host), []string{"is no emptyDir",
		"leave the volume out", "configuration refused"})
}

// testSharingConflict creates two claims with different settings for one card.
func (s *suite) testSharingConflict(t *testing.T) {
	s.needs(t, sharesOfMIG...)
	node := s.node(t, "mixed")
	device := s.gpus(t, node)[0].Name
	factory := s.hardware(t, node, device)
	ns := s.namespace(t, "conflict")
	request := share("gpu", h100, "5Gi", "")
	first := s.pod(t, ns, "first", withTemplate(s.configured(t, ns, "long", request,
		`{"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}`)))
	claim := s.claimOf(t, s.running(t, first))
	if got := s.hardware(t, node, device); !strings.Contains(got, "interval=Long") {
		t.Errorf("got %q, want a long time slice", got)
	}
	s.must(t, kube.Until(t.Context(), soon, "an event that the share is not enforced", func(ctx context.Context) (bool,
		string, error) {
		events, err := s.Events(ctx, client.ObjectKeyFromObject(&claim))
		return containsAll(strings.Join(events, "\n"), []string{"counted and not enforced"}),
			strings.Join(events, "\n"), err
	}))
	second := s.pod(t, ns, "second", withTemplate(s.templateFor(t, ns, "enforced", request)))
	s.waitRefused(t, second, []string{device, ns + "/" + claim.Name, "time slice Long", "EXCLUSIVE_PROCESS",
		"settings of another claim"})
	s.must(t, s.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: second.Name, Namespace: ns}}))
	s.must(t, s.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: first.Name, Namespace: ns}}))
	s.waitFactory(t, node, device, factory)
}

// testDaemonFaults breaks the MPS daemon of a card, before and while it has clients.
func (s *suite) testDaemonFaults(t *testing.T) {
	s.needs(t, sharesOfMIG...)
	node := s.node(t, "mixed")
	device := s.gpus(t, node)[0].Name
	ns := s.namespace(t, "daemon")
	template := s.templateFor(t, ns, "share", share("gpu", h100, "5Gi", ""))
	fault := func(what string) { s.simctl(t, s.plugin(t, node), "mps", device, what) }
	defer fault("heal")

	fault("refusing")
	pod := s.pod(t, ns, "waiting", withTemplate(template), withArgs("probe", "--stay"))
	s.waitWaiting(t, pod, "MPS daemon "+device, "MPS daemon is not ready")
	fault("heal")
	claim := s.claimOf(t, s.running(t, pod))

	fault("dead")
	s.must(t, kube.Until(t.Context(), soon, "the daemon to die", func(ctx context.Context) (bool, string, error) {
		got, _ := s.Exec(ctx, pod, "gpu-demo", "alloc", "1Gi")
		return !strings.HasPrefix(got, "granted"), got, nil
	}))
	fault("heal")
	s.must(t, kube.Until(t.Context(), soon, "an event about the daemon's restart", func(ctx context.Context) (bool,
		string, error) {
		events, err := s.Events(ctx, client.ObjectKeyFromObject(&claim))
		return containsAll(strings.Join(events, "\n"), []string{"MPS daemon of " + device, "started again"}),
			strings.Join(events, "\n"), err
	}))
	s.must(t, kube.Until(t.Context(), soon, "the new daemon to serve", func(ctx context.Context) (bool, string, error) {
		got, _ := s.Exec(ctx, pod, "gpu-demo", "alloc", "1Gi")
		return strings.HasPrefix(got, "granted 1024MiB"), got, nil
	}))
}

// testDaemonOutlivesPlugin kills the plugin while an MPS client runs.
func (s *suite) testDaemonOutlivesPlugin(t *testing.T) {
	s.needs(t, sharesOfMIG...)
	node := s.node(t, "mixed")
	ns := s.namespace(t, "outlives")
	template := s.templateFor(t, ns, "share", share("gpu", h100, "5Gi", ""))
	pod := s.pod(t, ns, "client", withTemplate(template), withArgs("alloc", "1Gi", "--stay"))
	s.running(t, pod)
	uuid := stringAttribute(s.gpus(t, node)[0], "uuid")
	s.waitLog(t, pod, fmt.Sprintf("granted 1024MiB of %s, limit 5120MiB, threads 100%%\n", uuid))
	daemon := func() string {
		var states []string
		for _, supervisor := range s.supervisors(t, node) {
			states = append(states, supervisor.Name+" "+string(supervisor.UID))
		}
		return strings.Join(states, "\n") + "\n" + s.hardware(t, node, s.gpus(t, node)[0].Name)
	}
	before := daemon()
	plugin := s.plugin(t, node)
	s.must(t, s.Delete(t.Context(), plugin, client.GracePeriodSeconds(0)))
	s.must(t, kube.Until(t.Context(), soon, "another plugin to prepare", func(ctx context.Context) (bool, string,
		error) {
		now := s.plugin(t, node)
		return now.UID != plugin.UID && kube.Ready(now), now.Name, nil
	}))
	if got := daemon(); got != before {
		t.Errorf("got\n%s\nwant the same as before the plugin was killed\n%s", got, before)
	}
	second := s.pod(t, ns, "second", withTemplate(template), withArgs("probe", "--stay"))
	s.running(t, second)
	if got, err := s.WaitPod(t.Context(), soon, pod, "running",
		func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }); err != nil ||
		got.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the client did not survive: %v", err)
	}
}

// supervisors returns the pods that run the MPS daemons of a node.
func (s *suite) supervisors(t *testing.T, node string) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	s.must(t, s.List(t.Context(), &pods, client.MatchingLabels{"app.kubernetes.io/component": "mps-supervisor"},
		client.MatchingFields{"spec.nodeName": node}))
	if len(pods.Items) == 0 {
		t.Fatalf("no supervisor on %s", node)
	}
	return pods.Items
}
