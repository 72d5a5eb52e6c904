// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// One value switches the webhook, the rights, the flag and the kind of quotas, and one the kind alone. Only namespaces
// with the label depend on the webhook.
func TestQuota(t *testing.T) {
	for _, tc := range []struct {
		name     string
		args     []string
		on, kind bool
	}{
		{"the defaults", nil, true, true},
		{"switched off", []string{"--set", "controller.quota.enabled=false"}, false, false},
		{"somebody else installs the kind", []string{"--set", "controller.quota.crd=false"}, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := template(t, tc.args...)
			var d appsv1.Deployment
			rendered(t, text, "Deployment", "controller", &d)
			if got := slices.Contains(d.Spec.Template.Spec.Containers[0].Args, "--quota"); got != tc.on {
				t.Errorf("got the argument: %t, want %t", got, tc.on)
			}
			var role rbacv1.ClusterRole
			rendered(t, text, "ClusterRole", "controller", &role)
			if got := slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.Resources, "gpuquotas/status")
			}); got != tc.on {
				t.Errorf("got the right to write what is used: %t, want %t", got, tc.on)
			}
			if got := strings.Contains(text, "\nkind: CustomResourceDefinition\n"); got != tc.kind {
				t.Errorf("got the kind: %t, want %t", got, tc.kind)
			}
			if got := strings.Contains(text, "\n    helm.sh/resource-policy: keep"); got != tc.kind {
				t.Errorf("got a kind that Helm keeps: %t, want %t", got, tc.kind)
			}
			if got := strings.Contains(text, "-view-quotas\n"); got != tc.on {
				t.Errorf("got the right to view quotas: %t, want %t", got, tc.on)
			}
			var webhooks admissionv1.ValidatingWebhookConfiguration
			rendered(t, text, "ValidatingWebhookConfiguration", "controller", &webhooks)
			i := slices.IndexFunc(webhooks.Webhooks, func(w admissionv1.ValidatingWebhook) bool {
				return w.Name == "quota.gpu.nvidia.com"
			})
			if i >= 0 != tc.on {
				t.Fatalf("got the webhook: %t, want %t", i >= 0, tc.on)
			}
			if i < 0 {
				return
			}
			w := webhooks.Webhooks[i]
			if *w.FailurePolicy != admissionv1.Fail || !slices.ContainsFunc(w.NamespaceSelector.MatchExpressions,
				func(r metav1.LabelSelectorRequirement) bool {
					return r.Key == "gpu.nvidia.com/quota" && r.Operator == metav1.LabelSelectorOpIn &&
						slices.Equal(r.Values, []string{"on"})
				}) {
				t.Errorf("got %s in namespaces with %v, want Fail, and only with the label", *w.FailurePolicy,
					w.NamespaceSelector)
			}
		})
	}
}
