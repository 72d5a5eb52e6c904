// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
)

// The policy of default spreading is for pods with a claim and without a constraint. The end-to-end tests see what it
// adds to them.
func TestPolicyOfDefaultSpreading(t *testing.T) {
	var policy admissionv1.MutatingAdmissionPolicy
	var binding admissionv1.MutatingAdmissionPolicyBinding
	text := template(t, "--api-versions", mutatingPolicies)
	if !rendered(t, text, "MutatingAdmissionPolicy", "-default-spreading", &policy) ||
		!rendered(t, text, "MutatingAdmissionPolicyBinding", "-default-spreading", &binding) {
		t.Fatal("no policy, or no binding")
	}
	if binding.Spec.PolicyName != policy.Name {
		t.Errorf("got a binding of %s, want %s", binding.Spec.PolicyName, policy.Name)
	}
	if got := policy.Spec.MatchConstraints.NamespaceSelector.MatchLabels; len(got) != 1 ||
		got["gpu.nvidia.com/default-spreading"] != "off" {
		t.Errorf("got namespaces with %v, want only those with the label", got)
	}
	if *policy.Spec.FailurePolicy != admissionv1.Ignore {
		t.Errorf("got failure policy %s, want pods that are never refused", *policy.Spec.FailurePolicy)
	}
	claim := []corev1.PodResourceClaim{{Name: "gpu"}}
	constraint := []corev1.TopologySpreadConstraint{{MaxSkew: 1}}
	for _, row := range []struct {
		name string
		spec corev1.PodSpec
		want bool
	}{
		{"a claim", corev1.PodSpec{ResourceClaims: claim}, true},
		{"no claim", corev1.PodSpec{}, false},
		{"a claim and a constraint", corev1.PodSpec{ResourceClaims: claim,
			TopologySpreadConstraints: constraint}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := true
			for _, condition := range policy.Spec.MatchConditions {
				got = got && evaluate(t, condition.Expression,
					map[string]any{"object": asJSON(t, corev1.Pod{Spec: row.spec})}) == true
			}
			if got != row.want {
				t.Errorf("got %t, want %t", got, row.want)
			}
		})
	}
}

// Before 1.36 the API server refuses an object of this kind, and Helm the whole release.
func TestNoPolicyOfDefaultSpreadingWithoutItsAPI(t *testing.T) {
	if text := template(t); strings.Contains(text, "MutatingAdmissionPolicy") {
		t.Errorf("got\n%s\nwant no MutatingAdmissionPolicy", text)
	}
}
