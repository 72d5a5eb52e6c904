//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
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
	slice := s.slicesOf(t, node)[0]
	if err := as.Update(t.Context(), slice.DeepCopy(), client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("update slice %s: got error %v, want a refusal", slice.Name, err)
	}
	slice.Name, slice.ResourceVersion = "e2e-other", ""
	if err := as.Create(t.Context(), &slice, client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("create a slice of the plugin: got error %v, want a refusal", err)
	}
	if err := as.Status().Patch(t.Context(), pod, client.RawPatch(types.MergePatchType,
		[]byte(`{"status":{"reason":"x"}}`)), client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("write the status of pod %s: got error %v, want a refusal", pod.Name, err)
	}
	s.testEvictionsByToken(t, as, ns, node)
	s.testOtherNames(t, as, controller.Namespace)
	for _, right := range s.granted(t, controller.Namespace, controller.Spec.ServiceAccountName) {
		if right == "create resource.k8s.io/devicetaintrules" {
			rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "preemption-e2e"},
				Spec: resourceapi.DeviceTaintRuleSpec{Taint: resourceapi.DeviceTaint{Key: "gpu.nvidia.com/preemption",
					Effect: resourceapi.DeviceTaintEffectNoExecute}}}
			refusedFor(t, "a rule that evicts all pods", as.Create(t.Context(), rule, client.DryRunAll),
				"only DeviceTaintRules preemption-*")
		}
		verb, _, _ := strings.Cut(right, " ")
		if !slices.Contains([]string{"get", "list", "watch"}, verb) && limitOfController[right] == "" {
			t.Errorf("%s: nothing here says what limits it", right)
		}
	}
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
	patch := func(change string) error {
		return as.Status().Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType,
			[]byte(change)), client.DryRunAll)
	}
	for _, change := range []string{`{"status":{"phase":"Failed"}}`,
		`{"status":{"podIPs":[{"ip":"2001:db8::1"}],"podIP":"2001:db8::1"}}`,
		`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, `{"metadata":{"labels":{"app":"vault"}}}`,
		`{"metadata":{"annotations":{"x":"y"}}}`, `{"metadata":{"finalizers":["example.com/never"]}}`} {
		refusedFor(t, "the change "+change, patch(change), "only the condition DisruptionTarget")
	}
	s.must(t, patch(`{"status":{"conditions":[{"type":"DisruptionTarget","status":"True"}]}}`))
	s.must(t, as.Delete(t.Context(), pod, client.DryRunAll))
}

// limitOfController says what limits each of the controller's rights to write, for docs/operate/security.md.
var limitOfController = map[string]string{
	"create resource.k8s.io/resourceclaimtemplates": "a policy, tried here",
	"delete resource.k8s.io/resourceclaimtemplates": "a policy, tried here",
	"delete pods":                                                    "a policy, tried here",
	"patch pods/status":                                              "a policy, tried here",
	"create pods/eviction":                                           "a policy: testIdlePod; with preemption nothing",
	"create secrets":                                                 "a policy, tried here",
	"create resource.k8s.io/resourceslices":                          "a policy, tried here",
	"update resource.k8s.io/resourceslices":                          "a policy, tried here",
	"delete resource.k8s.io/resourceslices":                          "a policy, tried here",
	"patch resource.k8s.io/resourceclaims/status":                    "the drivers of the next",
	"arbitrary-node:patch resource.k8s.io/resourceclaims/driver":     "its names",
	"approve certificates.k8s.io/signers":                            "its names",
	"sign certificates.k8s.io/signers":                               "its names",
	"update certificates.k8s.io/certificatesigningrequests/approval": "the signers of the last two",
	"update certificates.k8s.io/certificatesigningrequests/status":   "the same",
	"update secrets":                                                 "its names, tried here",
	"patch configmaps":                                               "its names, tried here",
	"update configmaps":                                              "its names, tried here",
	"patch resource.k8s.io/deviceclasses":                            "its names, tried here",
	"update coordination.k8s.io/leases":                              "its names, tried here",
	"delete coordination.k8s.io/leases":                              "its names, tried here",
	"create coordination.k8s.io/leases":                              "its namespace",
	"patch events":                                                   "its namespace",
	"create events":                                                  "nothing",
	"update resource.nvidia.com/gpuquotas/status":                    "nothing",
	"create resource.k8s.io/devicetaintrules":                        "a policy of rules; only with preemption",
	"deletecollection resource.k8s.io/devicetaintrules":              "a policy of rules; only with preemption",
	"patch " + webhooks + "validatingwebhookconfigurations":          "its names, tried here",
	"patch " + webhooks + "mutatingwebhookconfigurations":            "its names, tried here",
}

const webhooks = "admissionregistration.k8s.io/"

// testOtherNames: rights with names are for no other object.
func (s *suite) testOtherNames(t *testing.T, as *kube.Cluster, namespace string) {
	t.Helper()
	other := metav1.ObjectMeta{Name: "e2e-other", Namespace: namespace}
	global := metav1.ObjectMeta{Name: "e2e-other"}
	for _, o := range []client.Object{&corev1.Secret{ObjectMeta: other}, &corev1.ConfigMap{ObjectMeta: other},
		&coordinationv1.Lease{ObjectMeta: other},
		&resourceapi.DeviceClass{ObjectMeta: global}, &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: global},
		&admissionv1.MutatingWebhookConfiguration{ObjectMeta: global}} {
		change := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))
		o.SetResourceVersion("1")
		for verb, err := range map[string]error{
			"update": as.Update(t.Context(), o.DeepCopyObject().(client.Object), client.DryRunAll),
			"patch":  as.Patch(t.Context(), o.DeepCopyObject().(client.Object), change, client.DryRunAll),
			"delete": as.Delete(t.Context(), o.DeepCopyObject().(client.Object), client.DryRunAll),
		} {
			if !apierrors.IsForbidden(err) {
				t.Errorf("%s %T: got error %v, want a refusal", verb, o, err)
			}
		}
	}
	if err := as.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: other.Name},
		&corev1.Secret{}); !apierrors.IsForbidden(err) {
		t.Errorf("read another secret: got error %v, want a refusal", err)
	}
}
