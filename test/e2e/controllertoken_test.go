//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testControllerToken sends dry runs with the controller's token: what a thief of the token could do.
func (s *suite) testControllerToken(t *testing.T) {
	controllers := s.controllers(t)
	if len(controllers) == 0 {
		t.Skip("no controller is installed")
	}
	controller := &controllers[0]
	as, err := s.AsServiceAccount(t.Context(), controller.Namespace, controller.Spec.ServiceAccountName, misusedToken)
	s.must(t, err)
	ns := s.namespace(t, "controller-token")
	node := s.node(t, "l40s-x4")
	pod := s.running(t, s.pod(t, ns, "worker", onNode(node), withTemplate(s.template(t, ns, "one-gpu"))))
	claim := s.claimOf(t, pod)
	objects := []client.Object{pod, &claim}
	for _, slice := range s.slicesOf(t, node) {
		objects = append(objects, &slice)
	}
	for _, o := range objects {
		if err := as.Delete(t.Context(), o, client.DryRunAll); !apierrors.IsForbidden(err) {
			t.Errorf("delete %T %s: got error %v, want a refusal", o, o.GetName(), err)
		}
	}
	if err := as.Status().Patch(t.Context(), pod, client.RawPatch(types.MergePatchType,
		[]byte(`{"status":{"reason":"x"}}`)), client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("write the status of pod %s: got error %v, want a refusal", pod.Name, err)
	}
	s.testEvictionsByToken(t, as, ns, node)
	only := "only the templates of converted pods"
	lacks, err := s.Lacks(t.Context(), "Kubernetes 1.36")
	s.must(t, err)
	if len(lacks) > 0 {
		only = "cannot" // without conversion it has no right to templates
	}
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "one-gpu"}}
	refusedFor(t, "the template of a user", as.Delete(t.Context(), template, client.DryRunAll), only)
	template.Name, template.Spec.Spec = "converted-by-nobody", claimSpec()
	refusedFor(t, "a template for no converted pod", as.Create(t.Context(), template, client.DryRunAll), only)
	secret := func(name string, kind corev1.SecretType) error {
		return as.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controller.Namespace,
			Name:        name,
			Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: kind}, client.DryRunAll)
	}
	own := s.certificate(t).Name
	const other = "may create only the secret "
	refusedFor(t, "another secret", secret(own+"-2", corev1.SecretTypeOpaque), other+own)
	refusedFor(t, "a secret that is filled with a token", secret(own, corev1.SecretTypeServiceAccountToken), other+own)
	if err := secret(own, corev1.SecretTypeOpaque); !apierrors.IsAlreadyExists(err) {
		t.Errorf("its own secret: got error %v, want it to be there already", err)
	}
}

// testEvictionsByToken: of a pod with extended resources, the controller may write the condition DisruptionTarget and
// nothing else, and delete it.
func (s *suite) testEvictionsByToken(t *testing.T, as *kube.Cluster, namespace, node string) {
	t.Helper()
	lacks, err := s.Lacks(t.Context(), "DRAExtendedResource")
	s.must(t, err)
	if len(lacks) > 0 {
		return
	}
	pod := s.running(t, s.pod(t, namespace, "extended", onNode(node), func(p *corev1.PodSpec) {
		p.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	}))
	patch := func(status string) error {
		return as.Status().Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType,
			[]byte(`{"status":`+status+`}`)), client.DryRunAll)
	}
	for _, status := range []string{`{"phase":"Failed"}`, `{"podIPs":[{"ip":"2001:db8::1"}],"podIP":"2001:db8::1"}`,
		`{"conditions":[{"type":"Ready","status":"False"}]}`} {
		refusedFor(t, "the status "+status, patch(status), "only the condition DisruptionTarget")
	}
	s.must(t, patch(`{"conditions":[{"type":"DisruptionTarget","status":"True"}]}`))
	s.must(t, as.Delete(t.Context(), pod, client.DryRunAll))
}
