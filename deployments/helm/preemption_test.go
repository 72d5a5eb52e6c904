// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Who has the token of the controller may taint a device for a preemption, and nothing else, and may delete no rules of
// administrators.
func TestPolicyOfTaintRules(t *testing.T) {
	var policy admissionv1.ValidatingAdmissionPolicy
	rendered(t, template(t, "--kube-version", "v1.37.0", "--set", "controller.preemption.enabled=true"),
		"ValidatingAdmissionPolicy", "creates", &policy)
	rule := func(name, key string, effect resourceapi.DeviceTaintEffect, of *resourceapi.DeviceTaintSelector) any {
		return asJSON(t, resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.DeviceTaintRuleSpec{DeviceSelector: of, Taint: resourceapi.DeviceTaint{Key: key,
				Effect: effect}}})
	}
	const name, key, no = "preemption-x-0", "gpu.nvidia.com/preemption", resourceapi.DeviceTaintEffectNoSchedule
	device := &resourceapi.DeviceTaintSelector{Driver: ptr.To(gpuDriver), Pool: ptr.To("n-1"), Device: ptr.To("d")}
	for _, row := range []struct {
		name string
		rule any
		want bool
	}{
		{"a device of a preemption", rule(name, key, no, device), true},
		{"pods are evicted", rule(name, key, resourceapi.DeviceTaintEffectNoExecute, device), false},
		{"another taint", rule(name, "gpu.nvidia.com/reserved", no, device), false},
		{"another name", rule("reserved-x", key, no, device), false},
		{"all devices of a driver", rule(name, key, no, &resourceapi.DeviceTaintSelector{Driver: ptr.To(gpuDriver)}),
			false},
		{"all devices", rule(name, key, no, nil), false},
	} {
		for _, input := range []map[string]any{{"object": row.rule, "oldObject": nil},
			{"object": nil, "oldObject": row.rule}} {
			input["request"] = map[string]any{"resource": map[string]any{"resource": "devicetaintrules"}}
			got := true
			for _, v := range policy.Spec.Validations {
				got = got && evaluate(t, v.Expression, input) == true
			}
			if got != row.want {
				t.Errorf("%s, created: %t: got allowed: %t, want %t", row.name, input["object"] != nil, got, row.want)
			}
		}
	}
	if !slices.ContainsFunc(policy.Spec.MatchConstraints.ResourceRules, func(
		r admissionv1.NamedRuleWithOperations) bool {
		return slices.Contains(r.Resources, "devicetaintrules") && len(r.Operations) == 3
	}) {
		t.Error("the policy is not asked about DeviceTaintRules")
	}
}

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
