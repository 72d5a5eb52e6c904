//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/demos"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

func (s *suite) testDemos(t *testing.T) {
	all, err := demos.Load("../../demo")
	s.must(t, err)
	names := demos.Namespaces(all)
	s.must(t, s.Empty(t.Context(), soon, names...))
	t.Cleanup(func() { s.must(t, s.Empty(context.WithoutCancel(t.Context()), soon, names...)) })
	for _, demo := range all {
		t.Run(demo.Name, func(t *testing.T) {
			t.Cleanup(func() { s.KeepLogsOf(t) })
			lacks, err := demo.Lacks(t.Context(), s.Cluster)
			s.must(t, err)
			skipWithout(t, lacks)
			s.must(t, demo.FreeGPUs(t.Context(), s.Cluster, all, soon))
			if demo.Name == "composable" {
				defer s.unchanged(t, s.node(t, "mixed"))()
			}
			if _, err := demo.Run(t.Context(), s.Cluster, *driver, soon); err != nil {
				t.Errorf("%v\n%s", err, s.Diagnose(t.Context(), demo.Namespaces()[0]))
			}
		})
	}
}

func (s *suite) testDistinct(t *testing.T) {
	node := s.node(t, "mixed")
	ns := s.namespace(t, "distinct")
	template := s.template(t, ns, "one-gpu")
	var pods []client.ObjectKey
	for n := range 3 {
		pods = append(pods, s.pod(t, ns, fmt.Sprintf("worker-%d", n), onNode(node), withTemplate(template)))
	}
	holders := map[string]string{}
	for _, key := range pods {
		device := s.allocated(t, s.running(t, key))
		if other, ok := holders[device.Name]; ok {
			t.Errorf("%s: got %s, which %s has", key.Name, device.Name, other)
		}
		holders[device.Name] = key.Name
		want := fmt.Sprintf("GPU 0: %s (UUID: %s)\n/dev/nvidia%d: allowed\n",
			stringAttribute(device, "productName"), stringAttribute(device, "uuid"), intAttribute(device, "minor"))
		s.waitLog(t, key, want)
		// The CDI spec's hook has run: without the loader's cache, CUDA programs do not find the driver's libraries.
		if got := s.run(t, key, "gpu-demo", "find", "/etc/ld.so.cache"); got == "" {
			t.Errorf("%s: no /etc/ld.so.cache, want the one that the CDI hook makes", key.Name)
		}
	}
}

// waitLog waits until the output of the pod's only container is exactly want: a running container may not have printed
// it yet.
func (s *suite) waitLog(t *testing.T, pod client.ObjectKey, want string) {
	t.Helper()
	s.waitContainerLog(t, pod, "", want)
}

// waitContainerLog is waitLog for a pod with several containers.
func (s *suite) waitContainerLog(t *testing.T, pod client.ObjectKey, container, want string) {
	t.Helper()
	var got string
	err := kube.Until(t.Context(), soon, "the log of "+pod.Name+" "+container, func(ctx context.Context) (bool, string,
		error) {
		now, err := s.ContainerLog(ctx, pod, container)
		if err == nil {
			got = now
		}
		return got == want, "", err
	})
	if err != nil {
		t.Errorf("%v\ngot\n%s\nwant\n%s", err, got, want)
	}
}

func (s *suite) testIsolation(t *testing.T) {
	node := s.node(t, "mixed")
	ns := s.namespace(t, "isolation")
	// The major and minor numbers of all GPUs of the node.
	dev := simDir + "/root/dev"
	outside := s.pod(t, ns, "outside", onNode(node), withHostDirs(simDir), withMknod)
	inside := s.pod(t, ns, "inside", onNode(node), withTemplate(s.template(t, ns, "one-gpu")), withMknod)
	s.running(t, outside)
	own := s.allocated(t, s.running(t, inside))
	numbers := deviceNumbers(s.run(t, outside, "gpu-demo", "find", dev), dev+"/nvidia")
	devices := s.gpus(t, node)
	if len(numbers) < len(devices) || len(devices) < 2 {
		t.Fatalf("got numbers %v of %d devices, want one of each and at least two", numbers, len(devices))
	}

	s.waitLog(t, outside, "no nvidia-smi in this container\nno GPU device node in /dev\n")
	for _, device := range devices {
		number := numbers[fmt.Sprint(intAttribute(device, "minor"))]
		args := append([]string{"gpu-demo", "open"}, strings.Split(number, ":")...)
		if got, want := s.run(t, outside, args...), fmt.Sprintf("open %s: EPERM\n", number); got != want {
			t.Errorf("without a claim, %s: got %q, want %q", device.Name, got, want)
		}
		want := fmt.Sprintf("open %s: EPERM\n", number)
		if device.Name == own.Name {
			want = fmt.Sprintf("open %s: ENXIO\n", number) // allowed; there is no driver behind it
		}
		if got := s.run(t, inside, args...); got != want {
			t.Errorf("with a claim for %s, %s: got %q, want %q", own.Name, device.Name, got, want)
		}
	}
	// Without a claim, the program that lists the claim's GPU finds none, and exits with status 6 like the real one.
	got, err := s.Exec(t.Context(), outside, simDir+"/root/usr/bin/nvidia-smi", "-L")
	if want := "No devices were found\n"; got != want || err == nil {
		t.Errorf("nvidia-smi -L without a claim: got %q and error %v, want %q and an error", got, err, want)
	}
}

// deviceNumbers parses "PREFIXn MAJOR:MINOR" lines into a map from n to the numbers.
func deviceNumbers(listing, prefix string) map[string]string {
	numbers := map[string]string{}
	for line := range strings.Lines(listing) {
		path, number, ok := strings.Cut(strings.TrimSpace(line), " ")
		if n, under := strings.CutPrefix(path, prefix); ok && under {
			numbers[n] = number
		}
	}
	return numbers
}

func opaque(driver, parameters string) resourceapi.DeviceClaimConfiguration {
	return resourceapi.DeviceClaimConfiguration{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver,
			Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
	}}
}

func (s *suite) testConfig(t *testing.T) {
	const head = `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"`
	ns := s.namespaceWithoutWebhooks(t, "config")
	for _, tc := range []struct {
		name       string // of the pod too
		driver     string
		parameters string
		want       []string // in the event; none: the pod runs
	}{
		{"unknown-field", *driver, head + `, "sharign": {}}`, []string{"opaque.parameters.sharign", "unknown field"}},
		{"unknown-kind", *driver, `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GPUConfig"}`,
			[]string{"opaque.parameters.kind", "GpuConfig"}},
		{"two-strategies", *driver, head + `, "sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}}`,
			[]string{"opaque.parameters.sharing.mpsConfig", "the strategy is TimeSlicing"}},
		{"limit-of-nothing", *driver, head +
			`, "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 0}}}`,
			[]string{"sharing.mpsConfig.defaultActiveThreadPercentage", "must be from 1 to 100"}},
		{"limit-above-the-card", *driver, head +
			`, "sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1Ti"}}}`,
			[]string{"a memory limit of 1Ti is more than device"}},
		{"defaults", *driver, head + `}`, nil},
		{"other-driver", "gpu.example.com", `{"any": "thing"}`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			template := s.template(t, ns, tc.name, opaque(tc.driver, tc.parameters))
			pod := s.pod(t, ns, tc.name, withTemplate(template))
			if tc.want == nil {
				s.running(t, pod)
				return
			}
			s.waitRefused(t, pod, tc.want)
		})
	}
}

// waitRefused waits for an event that contains all of want, and checks that the container has not been created.
func (s *suite) waitRefused(t *testing.T, pod client.ObjectKey, want []string) {
	t.Helper()
	s.waitEvent(t, pod, want...)
	s.waits(t, pod)
}

// waitWaiting waits for an event with these words that the pod's claim waits, and checks that its container has not
// started.
func (s *suite) waitWaiting(t *testing.T, pod client.ObjectKey, want ...string) {
	t.Helper()
	got, err := s.WaitPod(t.Context(), soon, pod, "to have its claim", func(p *corev1.Pod) bool {
		return len(p.Status.ResourceClaimStatuses) > 0
	})
	s.must(t, err)
	claim := s.claimOf(t, got)
	s.waitEvent(t, client.ObjectKeyFromObject(&claim), append([]string{"ClaimWaiting"}, want...)...)
	s.waits(t, pod)
}

// waits checks that the pod's container has not started.
func (s *suite) waits(t *testing.T, pod client.ObjectKey) {
	t.Helper()
	var got corev1.Pod
	s.must(t, s.Get(t.Context(), pod, &got))
	if kube.Started(&got) || got.Status.Phase != corev1.PodPending {
		t.Errorf("pod %s: got %s, want it to wait for its container", pod.Name, got.Status.Phase)
	}
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// testQueue requests more GPUs than a node has.
func (s *suite) testQueue(t *testing.T) {
	node := s.node(t, "dgx-h100")
	const gpus, wanted = 8, 12
	ns := s.namespace(t, "queue")
	template := s.template(t, ns, "one-gpu")
	for n := range wanted {
		s.pod(t, ns, fmt.Sprintf("worker-%02d", n), onNode(node), withTemplate(template))
	}
	running := s.waitPhases(t, ns, gpus, wanted-gpus)
	seen := map[string]bool{}
	for i := range running {
		seen[s.allocated(t, &running[i]).Name] = true
	}
	if len(seen) != gpus {
		t.Errorf("got %d different GPUs in use, want %d", len(seen), gpus)
	}
	// Delete two pods; two others complete, and their objects stay. The GPUs of all four become free.
	for i := range 2 {
		s.must(t, s.Delete(t.Context(), &running[i]))
		finished := running[i+2].DeepCopy()
		finished.Spec.ActiveDeadlineSeconds = new(int64)
		*finished.Spec.ActiveDeadlineSeconds = 1
		s.must(t, s.Patch(t.Context(), finished, client.MergeFrom(&running[i+2])))
	}
	s.waitPhases(t, ns, gpus, 0)
}

// waitPhases waits until these numbers of pods are running and pending, and returns the running ones.
func (s *suite) waitPhases(t *testing.T, namespace string, wantRunning, wantPending int) []corev1.Pod {
	t.Helper()
	var running []corev1.Pod
	what := fmt.Sprintf("%d running and %d pending pods", wantRunning, wantPending)
	s.must(t, kube.Until(t.Context(), soon, what, func(ctx context.Context) (bool, string, error) {
		pods, err := s.Pods(ctx, namespace)
		running = nil
		pending, waiting := 0, 0
		for _, pod := range pods {
			switch {
			case pod.DeletionTimestamp != nil:
			case pod.Status.Phase == corev1.PodRunning:
				running = append(running, pod)
			case pod.Status.Phase == corev1.PodPending && pod.Spec.NodeName == "":
				pending++
			case pod.Status.Phase == corev1.PodPending:
				waiting++
			}
		}
		state := fmt.Sprintf("%d running, %d pending, %d starting", len(running), pending, waiting)
		return len(running) == wantRunning && pending == wantPending && waiting == 0, state, err
	}))
	return running
}

// testDeletedSpec shares one claim between two pods. The second needs a CDI spec that was deleted.
func (s *suite) testDeletedSpec(t *testing.T) {
	node := s.node(t, "l40s-x4")
	ns := s.namespace(t, "deleted-spec")
	s.must(t, s.ApplyTyped(t.Context(), &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: "shared", Namespace: ns},
		Spec:       claimSpec(),
	}))
	s.running(t, s.pod(t, ns, "first", onNode(node), withClaim("shared")))
	var claim resourceapi.ResourceClaim
	s.must(t, s.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "shared"}, &claim))

	helper := s.pod(t, ns, "helper", onNode(node), withHostDirs(cdiDir))
	s.running(t, helper)
	specFile := func() string {
		for line := range strings.Lines(s.run(t, helper, "gpu-demo", "find", cdiDir)) {
			if strings.Contains(line, "-claim_"+string(claim.UID)) {
				return strings.TrimSpace(line)
			}
		}
		return ""
	}
	file := specFile()
	if file == "" {
		t.Fatalf("no CDI file of claim %s in %s", claim.UID, cdiDir)
	}
	s.run(t, helper, "gpu-demo", "rm", file)
	s.restartPlugin(t, node)
	s.must(t, kube.Until(t.Context(), soon, file+" to be there again", func(context.Context) (bool, string, error) {
		return specFile() == file, "no file", nil
	}))
	second := s.pod(t, ns, "second", onNode(node), withClaim("shared"))
	s.running(t, second)
	s.waitLog(t, second, seen([]resourceapi.Device{s.allocatedDevice(t, ns, "shared")}))
}

// testNothingLeft runs after all tests with claims.
func (s *suite) testNothingLeft(t *testing.T) {
	ns := s.namespace(t, "residue")
	pluginDir := "/var/lib/kubelet/plugins/" + *driver
	for profile, node := range s.nodes {
		helper := s.pod(t, ns, "helper-"+profile, onNode(node), withHostDirs(cdiDir, pluginDir))
		s.running(t, helper)
		// Unprepare happens after the pod has ended, and the deletion of a namespace does not wait for it.
		s.must(t, kube.Until(t.Context(), soon, "claims on "+node+" to be gone", func(context.Context) (bool, string,
			error) {
			left := claimFiles(s.run(t, helper, "gpu-demo", "find", cdiDir, pluginDir))
			return left == "", left, nil
		}))
	}
}

// claimFiles returns the files whose names contain the UID of a claim.
func claimFiles(listing string) string {
	var left []string
	for line := range strings.Lines(listing) {
		if path := strings.TrimSpace(line); uuid.MatchString(path) && !strings.HasSuffix(path, ".sock") {
			left = append(left, path)
		}
	}
	return strings.Join(left, "\n")
}
