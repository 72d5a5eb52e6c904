//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testControllerHangs freezes every replica: they accept connections but do not answer. A claim with a configuration is
// rejected after the API server's timeout of one second, and any other is created. Then the kubelet restarts the
// replicas, and everything works again. The controller stays installed.
func (s *suite) testControllerHangs(t *testing.T) {
	s.install(t, "controller.enabled=true")
	ns := s.namespace(t, "hangs")
	claim := func(class string, config ...resourceapi.DeviceClaimConfiguration) error {
		return s.Create(t.Context(), &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "claim-",
			Namespace: ns},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Config: config,
				Requests: []resourceapi.DeviceRequest{{Name: "gpu",
					Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}}}}})
	}
	config := resourceapi.DeviceClaimConfiguration{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{
			Raw: []byte(`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}`)}}}}
	eventually(t, soon, "the controller to answer", func() string {
		if err := claim(driver, config); err != nil {
			return err.Error()
		}
		return ""
	})
	restarted := s.signalControllers(t, "-STOP")
	must(t, claim(driver))
	must(t, claim("strongest."+driver))
	if err := claim(driver, config); err == nil || !strings.Contains(err.Error(), "validate."+driver) ||
		!strings.Contains(err.Error(), "timeout=1s") { // the API server's default is ten seconds
		t.Errorf("got %v, want a claim with a configuration refused in the name of the webhook, after one second", err)
	}
	restarted()
	eventually(t, soon, "the controller to answer again", func() string {
		if err := claim(driver, config); err != nil {
			return err.Error()
		}
		return ""
	})
}

// signalControllers sends a signal to every replica of the controller. The function that it returns waits until the
// kubelet has restarted each one since, and it is ready.
func (s *suite) signalControllers(t *testing.T, signal string) (restarted func()) {
	t.Helper()
	pods, err := s.Pods(t.Context(), release, client.MatchingLabels{"app.kubernetes.io/component": "controller"})
	must(t, err)
	for _, pod := range pods {
		s.control(t, "exec", pod.Spec.NodeName, "--", "pkill", signal, "-x", "dra-controller")
	}
	return func() {
		t.Helper()
		for _, pod := range pods {
			before := pod.Status.ContainerStatuses[0].RestartCount
			_, err := s.WaitPod(t.Context(), soon, client.ObjectKeyFromObject(&pod), "restarted and ready",
				func(p *corev1.Pod) bool {
					return kube.Ready(p) && p.Status.ContainerStatuses[0].RestartCount > before
				})
			must(t, err)
		}
	}
}
