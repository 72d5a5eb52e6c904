// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// The controller may delete pods only where it evicts them, and an admission policy says which.
func TestEviction(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want bool
	}{
		{"the defaults", nil, true},
		{"Kubernetes 1.35", []string{"--kube-version", "v1.35.0"}, true},
		{"Kubernetes 1.34, whose classes have no extended resources", []string{"--kube-version", "v1.34.4"}, false},
		{"switched off", []string{"--set", "controller.eviction.enabled=false"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := template(t, tc.args...)
			var d appsv1.Deployment
			rendered(t, text, "Deployment", "controller", &d)
			args := d.Spec.Template.Spec.Containers[0].Args
			if got := slices.Contains(args, "--evict-extended-resources"); got != tc.want {
				t.Errorf("got the argument: %t, want %t", got, tc.want)
			}
			var role rbacv1.ClusterRole
			rendered(t, text, "ClusterRole", "controller", &role)
			deletes := slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.Resources, "pods") && slices.Contains(r.Verbs, "delete")
			})
			if deletes != tc.want {
				t.Errorf("got the right to delete pods: %t, want %t", deletes, tc.want)
			}
			var policy admissionv1.ValidatingAdmissionPolicy
			rendered(t, text, "ValidatingAdmissionPolicy", "creates", &policy)
			guarded := slices.ContainsFunc(policy.Spec.MatchConstraints.ResourceRules,
				func(r admissionv1.NamedRuleWithOperations) bool { return slices.Contains(r.Resources, "pods") })
			if guarded != tc.want {
				t.Errorf("got a policy for pods: %t, want %t", guarded, tc.want)
			}
		})
	}
}

// The second scheduler has no version that a claim of a user can end.
func TestSafeScheduler(t *testing.T) {
	for cluster, want := range map[string]string{"v1.36.0": "v1.36.2", "v1.36.1-gke.100": "v1.36.2",
		"v1.36.2": "v1.36.2", "v1.36.5": "v1.36.5", "v1.37.0": "v1.37.0", "v1.35.4": "v1.35.4"} {
		text := template(t, "--set", "scheduler.enabled=true", "--kube-version", cluster)
		if image := "image: registry.k8s.io/kube-scheduler:" + want + "\n"; !strings.Contains(text, image) {
			t.Errorf("Kubernetes %s: want the %s", cluster, image)
		}
	}
}
