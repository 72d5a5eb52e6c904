// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A label of a namespace with a value that has no effect is warned about, and never refused.
func TestLabelsWithoutEffect(t *testing.T) {
	var policy admissionv1.ValidatingAdmissionPolicy
	var binding admissionv1.ValidatingAdmissionPolicyBinding
	text := template(t)
	if !rendered(t, text, "ValidatingAdmissionPolicy", "-labels", &policy) ||
		!rendered(t, text, "ValidatingAdmissionPolicyBinding", "-labels", &binding) {
		t.Fatal("no policy, or no binding")
	}
	if got := binding.Spec.ValidationActions; binding.Spec.PolicyName != policy.Name || len(got) != 1 ||
		got[0] != admissionv1.Warn || *policy.Spec.FailurePolicy != admissionv1.Ignore {
		t.Errorf("got a binding of %s to %v, failure policy %s; want only warnings", binding.Spec.PolicyName, got,
			*policy.Spec.FailurePolicy)
	}
	for labels, want := range map[string]string{"quota=true": "the label gpu.nvidia.com/quota is true, which has no " +
		"effect: write on or off", "convert=on": "", "default-spreading=off": "", "idle-eviction=2h": "",
		"quota=on": ""} {
		name, value, _ := strings.Cut(labels, "=")
		of := map[string]any{"object": asJSON(t, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{"gpu.nvidia.com/" + name: value}}})}
		var got []string
		for _, v := range policy.Spec.Validations {
			if evaluate(t, v.Expression, of) != true {
				said, _ := evaluate(t, v.MessageExpression, of).(string)
				got = append(got, said)
			}
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%s: got %q, want %q", labels, got, want)
		}
	}
}

// Who may view the whole cluster may use kubectl gpu. Others may if the values name them, and see no claims of others.
func TestReaders(t *testing.T) {
	const aggregate = "rbac.authorization.k8s.io/aggregate-to-view"
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	if text := template(t); !rendered(t, text, "ClusterRole", "-read", &role) || role.Labels[aggregate] != "true" ||
		rendered(t, text, "ClusterRoleBinding", "-read", &binding) {
		t.Errorf("got the role %v and the binding %v, want an aggregated role without a binding", role, binding)
	}
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			if strings.Contains(resource, "claim") || strings.Contains(resource, "pod") {
				t.Errorf("got the right to read %s of all namespaces", resource)
			}
		}
	}
	role = rbacv1.ClusterRole{}
	text := template(t, "--set-json", `rbac={"aggregateToView": false, "readers": [{"kind": "Group", "name": "users"}]}`)
	if !rendered(t, text, "ClusterRole", "-read", &role) || role.Labels[aggregate] != "" ||
		!rendered(t, text, "ClusterRoleBinding", "-read", &binding) || binding.RoleRef.Name != role.Name ||
		len(binding.Subjects) != 1 || binding.Subjects[0].Name != "users" {
		t.Errorf("got the role %v and the binding %v, want one for the users", role, binding)
	}
}
