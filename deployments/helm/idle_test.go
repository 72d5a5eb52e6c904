// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// Idle claims are marked by default. Pods are evicted only if somebody says so: then the controller has the rights for
// it, and an admission policy says in which namespaces.
func TestIdle(t *testing.T) {
	const evicts = "idle.eviction.enabled=true"
	for _, tc := range []struct {
		name          string
		args          []string
		marks, evicts bool
		guarded       bool
	}{
		{"the defaults", nil, true, false, false},
		{"with evictions", []string{"--set", evicts + ",controller.retry.enabled=false"}, true, true, true},
		{"with preemption, which may evict any pod", []string{"--set", evicts + ",controller.preemption.enabled=true"},
			true, true, false},
		{"switched off", []string{"--set", "idle.enabled=false," + evicts}, false, false, false},
		{"use is not measured", []string{"--set", "metrics.containers.usage=false," + evicts}, false, false, false},
		{"values of a chart that had none of this", []string{"--set", "idle=null"}, false, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := template(t, tc.args...)
			var plugin appsv1.DaemonSet
			rendered(t, text, "DaemonSet", "kubelet-plugin", &plugin)
			marks := slices.ContainsFunc(plugin.Spec.Template.Spec.Containers[0].Env,
				func(e corev1.EnvVar) bool { return e.Name == "IDLE_AFTER" && e.Value == "30m" })
			if marks != tc.marks {
				t.Errorf("marked after 30m: got %t, want %t", marks, tc.marks)
			}
			var controller appsv1.Deployment
			rendered(t, text, "Deployment", "controller", &controller)
			args := controller.Spec.Template.Spec.Containers[0].Args
			if got := slices.Contains(args, "--idle-warning=10m"); got != tc.evicts {
				t.Errorf("got the argument: %t, want %t", got, tc.evicts)
			}
			var role rbacv1.ClusterRole
			rendered(t, text, "ClusterRole", "controller", &role)
			may := slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.Resources, "pods/eviction") && slices.Contains(r.Verbs, "create")
			})
			if may != tc.evicts {
				t.Errorf("got the right to evict pods: %t, want %t", may, tc.evicts)
			}
			reads := slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.Resources, "resourceclaims") && slices.Contains(r.Verbs, "get")
			})
			if tc.evicts && !reads {
				t.Error("no right to read the claims before an eviction")
			}
			var policy admissionv1.ValidatingAdmissionPolicy
			rendered(t, text, "ValidatingAdmissionPolicy", "creates", &policy)
			guarded := slices.ContainsFunc(policy.Spec.Validations, func(v admissionv1.Validation) bool {
				return strings.Contains(v.Expression, "'gpu.nvidia.com/idle-eviction' in namespaceObject")
			})
			if guarded != tc.guarded {
				t.Errorf("got a policy for evictions: %t, want %t", guarded, tc.guarded)
			}
		})
	}
}
