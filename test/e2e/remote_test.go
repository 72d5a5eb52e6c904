//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/demos"
)

// testRemote shows what demo/remote does not: whom the connections refuse, and that a lost server is replaced. It runs
// the demo's server.
func (s *suite) testRemote(t *testing.T) {
	demo := s.remoteDemo(t)
	clientNode := s.node(t, "workstation")
	s.labelNode(t, clientNode, "gpu.nvidia.com/remote-client", "true") // the plugin there releases the pods' claims
	ns := s.namespace(t, "remote")
	s.warnedElsewhere(t, demo, ns)
	server := s.remoteServer(t, demo)

	claim := s.templateFor(t, ns, "remote", resourceapi.DeviceRequest{Name: "gpu",
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "remote." + *driver}})
	s.replicas(t, ns, "worker", clientNode, claim, 1, "remote", "--stay")
	anyDevice := func(string) bool { return true }
	worker := s.waitReplicas(t, ns, "worker", 1, anyDevice)[0]
	libraries := s.run(t, client.ObjectKeyFromObject(&worker), "gpu-demo", "find", "/usr/local/gpu-remote/lib")
	if want := "/usr/local/gpu-remote/lib/gpu-demo\n"; libraries != want {
		t.Errorf("the client's files: got %q, want %q", libraries, want)
	}

	// Who knows the address has nothing, and neither has a second claim: the first has the whole GPU.
	for name, token := range map[string]string{"no-token": "", "wrong-token": strings.Repeat("0", 64)} {
		stranger := s.pod(t, ns, name, onNode(clientNode), withArgs("remote"), withRemote(worker.Status.HostIP, token))
		got, err := s.WaitPod(t.Context(), soon, stranger, "failed",
			func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed || succeeded(p) })
		s.must(t, err)
		if log, err := s.Log(t.Context(), stranger); err != nil || succeeded(got) ||
			!strings.HasPrefix(log, "gpu-demo: remote GPU: ") {
			t.Errorf("%s: got %s %q, %v, want that it is refused", name, got.Status.Phase, log, err)
		}
	}
	s.waitUnschedulable(t, s.pod(t, ns, "second", onNode(clientNode), withArgs("remote"), withTemplate(claim)))
	s.deletePod(t, client.ObjectKey{Namespace: ns, Name: "second"})

	// The server ends: its client is evicted, and starts again with the GPU of the next server.
	s.must(t, s.Delete(t.Context(), server))
	s.waitGone(t, &worker)
	next := s.waitReplicas(t, server.Namespace, server.Labels["app"], 1, anyDevice)[0]
	worker = s.waitReplicas(t, ns, "worker", 1, anyDevice)[0]
	s.waitLog(t, client.ObjectKeyFromObject(&worker), seen([]resourceapi.Device{s.allocated(t, &next)}))
}

// remoteDemo returns demo/remote.
func (s *suite) remoteDemo(t *testing.T) demos.Demo {
	t.Helper()
	all, err := demos.Load("../../demo")
	s.must(t, err)
	selected, err := demos.Select(all, []string{"remote"})
	s.must(t, err)
	lacks, err := selected[0].Lacks(t.Context(), s.Cluster)
	s.must(t, err)
	skipWithout(t, lacks)
	return selected[0]
}

// remoteServer runs the demo's server beside the driver.
func (s *suite) remoteServer(t *testing.T, demo demos.Demo) *corev1.Pod {
	t.Helper()
	t.Cleanup(func() { s.must(t, demo.DeleteBeside(context.WithoutCancel(t.Context()), s.Cluster, soon)) })
	s.must(t, s.Apply(t.Context(), demo.Beside()...))
	return &s.waitReplicas(t, demo.Beside()[0].GetNamespace(), "gpu-server", 1, func(string) bool { return true })[0]
}

// warnedElsewhere creates the demo's server in another namespace, without effect.
func (s *suite) warnedElsewhere(t *testing.T, demo demos.Demo, namespace string) {
	t.Helper()
	for _, o := range demo.Beside() {
		if o.GetKind() != "Deployment" {
			continue
		}
		o = o.DeepCopy()
		o.SetNamespace(namespace)
		warnings := s.Warnings()
		s.must(t, s.Create(t.Context(), o, client.DryRunAll))
		if got := strings.Join(warnings(), "\n"); !strings.Contains(got, "only in the namespace gpu-dra-driver") {
			t.Errorf("a server in another namespace: got the warnings %q", got)
		}
	}
}

// withRemote gives the container what a client needs, without a claim.
func withRemote(hostIP, token string) podOption {
	return func(p *corev1.PodSpec) {
		p.Containers[0].Env = []corev1.EnvVar{{Name: "LUPINE_SERVER", Value: hostIP + ":14835"},
			{Name: "LUPINE_SESSION", Value: token}}
	}
}

// labelNode labels the node until the end of the test.
func (s *suite) labelNode(t *testing.T, name, label, value string) {
	t.Helper()
	s.must(t, s.Label(t.Context(), name, label, &value))
	t.Cleanup(func() { s.must(t, s.Label(context.WithoutCancel(t.Context()), name, label, nil)) })
}
