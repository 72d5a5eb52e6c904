//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testPlacement runs a scheduler with the file for kubeadm clusters, which asks the controller for scores.
func (s *suite) testPlacement(t *testing.T, program string) {
	const profile = "placing"
	ns := s.namespace(t, "placement")
	port, away := s.forwardController(t)
	text, err := os.ReadFile("../../deployments/scheduler/placement.yaml")
	s.must(t, err)
	secret := s.placementSecret(t)
	config := strings.NewReplacer("CLUSTER_IP", fmt.Sprintf("127.0.0.1:%d", port),
		"CA_DATA", base64.StdEncoding.EncodeToString(secret.Data["ca.crt"]),
		"CERT_DATA", base64.StdEncoding.EncodeToString(secret.Data["tls.crt"]),
		"KEY_DATA", base64.StdEncoding.EncodeToString(secret.Data["tls.key"]),
		"default-scheduler", profile, "leaderElect: true", "leaderElect: false").Replace(string(text))
	start := func(config string) *scheduler {
		running := s.startScheduler(t, program, nil, map[string][]byte{
			"/etc/kubernetes/scheduler.conf": s.schedulerKubeconfig(t),
			"/etc/kubernetes/placement.yaml": []byte(config)},
			"--config=/etc/kubernetes/placement.yaml", "-v=5")
		running.ready(t)
		return running
	}
	patient := strings.Replace(config, "httpTimeout: 500ms", "httpTimeout: 5m", 1) // on a slow machine, too
	if patient == config {
		t.Fatalf("no httpTimeout of 500ms in\n%s", config)
	}
	running := start(patient)
	s.waitScores(t, port, secret)
	claim := func(name string, share bool, tolerations ...resourceapi.DeviceToleration) *resourceapi.ResourceClaim {
		exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com", Tolerations: tolerations}
		if share {
			amounts := map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("1Gi")}
			exactly.Capacity = &resourceapi.CapacityRequirements{Requests: amounts}
		}
		return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
				Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exactly}}}}}
	}
	place := func(name string, share bool,
		tolerations ...resourceapi.DeviceToleration) resourceapi.DeviceRequestAllocationResult {
		claim := claim(name, share, tolerations...)
		s.must(t, s.Create(t.Context(), claim))
		pod := s.pod(t, ns, name, withClaim(name), func(p *corev1.PodSpec) { p.SchedulerName = profile })
		_, err := s.WaitPod(t.Context(), soon, pod, "placed",
			func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
		s.must(t, err)
		s.must(t, s.Get(t.Context(), client.ObjectKeyFromObject(claim), claim))
		return claim.Status.Allocation.Devices.Results[0]
	}
	first := place("share-0", true)
	for i := range 3 {
		next := place(fmt.Sprint("share-", i+1), true)
		if next.Pool != first.Pool || next.Device != first.Device {
			t.Errorf("share %d: got %s of %s, want %s of %s, which has room", i+1, next.Device, next.Pool, first.Device,
				first.Pool)
		}
	}
	// The node is kept for a team: others get no more of it, and the team's shares still come there.
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: &first.Driver, Pool: &first.Pool},
			Taint: resourceapi.DeviceTaint{Key: "gpu.nvidia.com/reserved", Value: "vision",
				Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
	s.must(t, s.Create(t.Context(), rule))
	defer func() { s.must(t, client.IgnoreNotFound(s.Delete(context.WithoutCancel(t.Context()), rule))) }()
	stranger := place("stranger-0", true)
	for i := 1; stranger.Pool == first.Pool; i++ { // the scheduler has not read the rule yet
		if i == 10 {
			t.Fatalf("got share %d of %s, which is kept for others", i, first.Pool)
		}
		stranger = place(fmt.Sprint("stranger-", i), true)
	}
	member := place("member", true, resourceapi.DeviceToleration{Key: rule.Spec.Taint.Key, Value: "vision",
		Operator: resourceapi.DeviceTolerationOpEqual, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	if member.Pool != first.Pool || member.Device != first.Device {
		t.Errorf("a share of the team: got %s of %s, want %s of %s, which is kept for it and has room", member.Device,
			member.Pool, first.Device, first.Pool)
	}
	s.must(t, s.Delete(t.Context(), rule))
	// A whole GPU does not come from the node with the most idle ones, if others have some.
	idle := s.idleGPUs(t)
	counts := slices.Collect(maps.Values(idle))
	whole := place("whole", false)
	if most := slices.Max(counts); idle[whole.Pool] == most && slices.Min(counts) < most {
		t.Errorf("a whole GPU: got one of %s; want one of a node with fewer idle GPUs: %v", whole.Pool, idle)
	}
	// A limit that only the largest GPUs have: on other nodes the pod would get a GPU and never start.
	limited := claim("limited", false)
	limited.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.
		DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.nvidia.com",
		Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
			"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "60Gi"}}}`)}}}}}
	s.must(t, s.Create(t.Context(), limited))
	s.running(t, s.pod(t, ns, "limited", withClaim("limited"), func(p *corev1.PodSpec) { p.SchedulerName = profile }))
	s.must(t, s.Create(t.Context(), claim("misspelt", true)))
	misspelt := s.pod(t, ns, "misspelt", withClaim("misspelt"), func(p *corev1.PodSpec) {
		p.SchedulerName, p.SchedulingGates = profile, []corev1.PodSchedulingGate{{Name: "e2e.example.com/annotation"}}
	})
	s.must(t, s.Patch(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: misspelt.Name, Namespace: ns}},
		client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": {"gpu.nvidia.com/placement": "spred"}},
			"spec": {"schedulingGates": null}}`))))
	s.waitEvent(t, misspelt, `got "spred", want pack or spread: nodes were scored with the policy pack`)
	_ = running.stop() // killed
	running = start(config)
	away()
	place("alone", true)
	silent, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)) // connections wait there, and nothing answers
	s.must(t, err)
	defer silent.Close()
	place("unanswered", true)
	gaveUp := func(line string) bool { // Go has several texts for a timeout
		return strings.Contains(line, "Failed to run extender's priority function") &&
			strings.Contains(line, "/unanswered") && !strings.Contains(line, "connection refused")
	}
	if !slices.ContainsFunc(strings.Split(running.log(), "\n"), gaveUp) {
		t.Error("the scheduler did not wait for the controller's scores of the pod unanswered")
	}
}

// placementSecret returns the secret that the controller makes for schedulers.
func (s *suite) placementSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	s.must(t, s.Get(t.Context(), client.ObjectKey{Namespace: controllerNamespace,
		Name: strings.TrimSuffix(s.certificate(t).Name, "certificate") + "placement"}, secret))
	return secret
}

// waitScores waits until the controller knows the pods and nodes that scores depend on. It begins to read them when it
// is asked first, and refuses to answer until then.
func (s *suite) waitScores(t *testing.T, port uint16, secret *corev1.Secret) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	s.must(t, err)
	asks := &http.Client{Timeout: hangs, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
		Certificates: []tls.Certificate{pair}, ServerName: "placement.gpu-dra-driver-controller.gpu-dra-driver.svc"}}}
	answers := func(ctx context.Context) (bool, string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost,
			fmt.Sprintf("https://127.0.0.1:%d/placement/prioritize", port), strings.NewReader("{}"))
		if err != nil {
			return false, "", err
		}
		response, err := asks.Do(request)
		if err != nil {
			return false, "", err
		}
		response.Body.Close()
		// A request without a pod is refused once requests are answered.
		return response.StatusCode == http.StatusBadRequest, response.Status, nil
	}
	s.must(t, kube.Until(t.Context(), soon, "scores of the controller", answers))
}

// idleGPUs returns how many whole GPUs of each node no claim holds anything of, without nodes that have none.
func (s *suite) idleGPUs(t *testing.T) map[string]int {
	t.Helper()
	var claims resourceapi.ResourceClaimList
	s.must(t, s.List(t.Context(), &claims))
	held := map[string]bool{}
	for _, c := range claims.Items {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			held[r.Pool+"/"+r.Device] = true
		}
	}
	idle := map[string]int{}
	var nodes corev1.NodeList
	s.must(t, s.List(t.Context(), &nodes))
	for _, node := range nodes.Items {
		for _, d := range s.wholeGPUs(t, node.Name) {
			if !held[node.Name+"/"+d.Name] && len(d.Taints) == 0 {
				idle[node.Name]++
			}
		}
	}
	return idle
}

// forwardController forwards a port of this machine to the webhook port of a controller, until away is called.
func (s *suite) forwardController(t *testing.T) (port uint16, away func()) {
	t.Helper()
	config := s.restConfig(t)
	clientset, err := kubernetes.NewForConfig(config)
	s.must(t, err)
	pod := s.controllers(t)[0]
	transport, upgrader, err := spdy.RoundTripperFor(config)
	s.must(t, err)
	url := clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).
		SubResource("portforward").URL()
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	forwarder, err := portforward.New(dialer,
		[]string{"0:9443"}, stop, ready, io.Discard, io.Discard)
	s.must(t, err)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("forward a port to %s: %v", pod.Name, err)
	}
	ports, err := forwarder.GetPorts()
	s.must(t, err)
	stopped := false
	away = func() {
		if !stopped {
			stopped = true
			close(stop)
			if err := <-ended; err != nil {
				t.Errorf("end the forwarding of a port: %v", err)
			}
		}
	}
	t.Cleanup(away)
	return ports[0].Local, away
}
