// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// The controller may evict pods only if the administrator wants that, and taint devices only where the API has rules.
func TestPreemption(t *testing.T) {
	const on = "controller.preemption.enabled=true"
	for _, tc := range []struct {
		name         string
		args         []string
		evicts, hold bool
	}{
		{"the defaults", nil, false, false},
		{"Kubernetes 1.37", []string{"--kube-version", "v1.37.0", "--set", on}, true, true},
		{"Kubernetes 1.36, whose rules are not in v1", []string{"--kube-version", "v1.36.2", "--set", on}, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := template(t, tc.args...)
			var d appsv1.Deployment
			rendered(t, text, "Deployment", "controller", &d)
			if got := slices.Contains(d.Spec.Template.Spec.Containers[0].Args, "--preempt"); got != tc.evicts {
				t.Errorf("got the argument: %t, want %t", got, tc.evicts)
			}
			if got := slices.Contains(d.Spec.Template.Spec.Containers[0].Args,
				"--preempt-schedulers=default-scheduler,gpu-first"); got != tc.evicts {
				t.Errorf("got the schedulers: %t, want %t", got, tc.evicts)
			}
			var role rbacv1.ClusterRole
			rendered(t, text, "ClusterRole", "controller", &role)
			may := func(verb, resource string) bool {
				return slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
					return slices.Contains(r.Verbs, verb) && slices.Contains(r.Resources, resource)
				})
			}
			if got := may("create", "pods/eviction"); got != tc.evicts {
				t.Errorf("got the right to evict: %t, want %t", got, tc.evicts)
			}
			if got := may("create", "devicetaintrules"); got != tc.hold {
				t.Errorf("got the right to taint devices: %t, want %t", got, tc.hold)
			}
			if tc.evicts && !strings.Contains(text, "object.status.?resourceClaimStatuses == oldObject.status.") {
				t.Error("got a policy that allows to write which claims a pod has, want none")
			}
			if got := strings.Contains(text, "- name: preemption.gpu.nvidia.com"); got != tc.hold {
				t.Errorf("got the webhook: %t, want %t", got, tc.hold)
			}
		})
	}
}
