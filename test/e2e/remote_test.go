//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// remoteGates are what a claim for a GPU of another node needs.
var remoteGates = []string{"DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus", "DRAConsumableCapacity",
	"DRADeviceTaints"}

const (
	remotePort  = ":14835"
	remoteLabel = "gpu.nvidia.com/remote-client"
)

// testRemote gives a GPU to a pod on another node, with a stand-in for Lupine, and then the one of another server.
func (s *suite) testRemote(t *testing.T) {
	s.needs(t, remoteGates...)
	serverNode, clientNode := s.node(t, "l40s-x4"), s.node(t, "workstation")
	s.labelNode(t, clientNode, remoteLabel, "true") // until the pods are gone, whose claims the plugin there releases
	ns := s.namespace(t, "remote")
	server := s.remoteServer(t, serverNode)
	local := s.allocated(t, server)

	claim := s.templateFor(t, ns, "remote", resourceapi.DeviceRequest{Name: "gpu",
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "remote." + *driver}})
	s.replicas(t, ns, "worker", clientNode, claim, 1, "remote", "--stay")
	anyDevice := func(string) bool { return true }
	worker := s.waitReplicas(t, ns, "worker", 1, anyDevice)[0]
	s.waitLog(t, client.ObjectKeyFromObject(&worker), seen([]resourceapi.Device{local}))
	here := s.run(t, client.ObjectKeyFromObject(&worker), "gpu-demo", "show")
	if want := "no nvidia-smi in this container\nno GPU device node in /dev\n"; here != want {
		t.Errorf("in the container itself: got %q, want %q", here, want)
	}
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
	next := s.waitReplicas(t, server.Namespace, remoteServerName, 1, anyDevice)[0]
	worker = s.waitReplicas(t, ns, "worker", 1, anyDevice)[0]
	s.waitLog(t, client.ObjectKeyFromObject(&worker), seen([]resourceapi.Device{s.allocated(t, &next)}))
}

const remoteServerName = "e2e-remote-server"

// remoteServer runs a server of the stand-in with a GPU of the node, beside the driver.
func (s *suite) remoteServer(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	plugin := s.plugin(t, node)
	ns := plugin.Namespace
	template := s.template(t, ns, remoteServerName)
	labels := map[string]string{"app": remoteServerName, "gpu.nvidia.com/remote-server": "lupine"}
	tools := []corev1.VolumeMount{{Name: "tools", MountPath: "/tools"}}
	pod := corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "tools", Image: plugin.Spec.Containers[0].Image,
			Command: []string{"/usr/bin/gpu-remote", "copy", "/usr/bin/gpu-remote", "/tools"}, VolumeMounts: tools}},
		Containers: []corev1.Container{{Name: "server", Image: s.image,
			Command: []string{"/tools/gpu-remote", "serve", "--", "/usr/bin/gpu-demo", "engine"},
			Env: []corev1.EnvVar{{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}}},
			VolumeMounts: append(tools, corev1.VolumeMount{Name: "certificates", MountPath: "/etc/gpu-remote"}),
			SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{
				Add: []corev1.Capability{"SYS_ADMIN", "NET_ADMIN"}}}}},
		Volumes: []corev1.Volume{
			{Name: "tools", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "certificates", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName: "gpu-remote-server"}}}},
	}
	onNode(node)(&pod)
	withTemplate(template)(&pod)
	objects := []client.Object{
		&appsv1.Deployment{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
			ObjectMeta: metav1.ObjectMeta{Name: remoteServerName, Namespace: ns},
			Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(1)),
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}}},
		&resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: template, Namespace: ns}},
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, o := range objects {
			s.must(t, s.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationForeground)))
		}
		s.must(t, kube.Until(ctx, soon, "the servers to be gone", func(ctx context.Context) (bool, string, error) {
			pods, err := s.Pods(ctx, ns, client.MatchingLabels(labels))
			return len(pods) == 0, "", err
		}))
	})
	s.must(t, s.ApplyTyped(t.Context(), objects[0]))
	return &s.waitReplicas(t, ns, remoteServerName, 1, func(string) bool { return true })[0]
}

// withRemote gives the container what a client needs, without a claim.
func withRemote(hostIP, token string) podOption {
	return func(p *corev1.PodSpec) {
		p.Containers[0].Env = []corev1.EnvVar{{Name: "LUPINE_SERVER", Value: hostIP + remotePort},
			{Name: "LUPINE_SESSION", Value: token}}
	}
}

// labelNode labels the node until the end of the test.
func (s *suite) labelNode(t *testing.T, name, label, value string) {
	t.Helper()
	set := func(ctx context.Context, change func(map[string]string)) {
		var node corev1.Node
		s.must(t, s.Get(ctx, client.ObjectKey{Name: name}, &node))
		before := node.DeepCopy()
		change(node.Labels)
		s.must(t, s.Patch(ctx, &node, client.MergeFrom(before)))
	}
	set(t.Context(), func(labels map[string]string) { labels[label] = value })
	t.Cleanup(func() {
		set(context.WithoutCancel(t.Context()), func(labels map[string]string) { delete(labels, label) })
	})
}
