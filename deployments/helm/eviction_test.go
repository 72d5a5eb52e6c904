// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// Who has the token of the controller may tell why a pod is evicted and, for preemption, where it goes and that it
// pauses. Its labels decide which Services and network policies it belongs to, so they stay, as does all else.
func TestPolicyOfPods(t *testing.T) {
	pod := func(change func(*corev1.Pod)) any {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "payments", Labels: map[string]string{"app": "payments"},
			Annotations: map[string]string{"a": "b"}}}
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "x"}
		change(p)
		return asJSON(t, p)
	}
	var policies [2]admissionv1.ValidatingAdmissionPolicy
	for i, preempts := range []bool{false, true} {
		chart := template(t, "--kube-version", "v1.37.0", "--set",
			fmt.Sprintf("controller.preemption.enabled=%t", preempts))
		rendered(t, chart, "ValidatingAdmissionPolicy", "creates", &policies[i])
	}
	for _, row := range []struct {
		name             string
		evicts, preempts bool // whether it is allowed
		change           func(*corev1.Pod)
	}{
		{"the condition", true, true, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
		}},
		{"the node", false, true, func(p *corev1.Pod) { p.Status.NominatedNodeName = "n" }},
		{"the pause", false, true, func(p *corev1.Pod) { p.Annotations["gpu.nvidia.com/preemption-pause"] = "1m" }},
		{"another annotation", false, false, func(p *corev1.Pod) { p.Annotations["x"] = "y" }},
		{"a changed annotation", false, false, func(p *corev1.Pod) { p.Annotations["a"] = "y" }},
		{"an annotation less", false, false, func(p *corev1.Pod) { delete(p.Annotations, "a") }},
		{"a label", false, false, func(p *corev1.Pod) { p.Labels["app"] = "vault" }},
		{"a finalizer", false, false, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/never"} }},
		{"another condition", false, false, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}},
		{"the phase", false, false, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
		{"the address of its node", false, false, func(p *corev1.Pod) { p.Status.HostIP = "192.0.2.1" }},
		{"its address", false, false, func(p *corev1.Pod) { p.Status.PodIP = "192.0.2.1" }},
	} {
		input := map[string]any{"object": pod(row.change), "oldObject": pod(func(*corev1.Pod) {}),
			"request": map[string]any{"operation": "UPDATE", "resource": map[string]any{"resource": "pods"}}}
		for i, want := range []bool{row.evicts, row.preempts} {
			got := true
			for _, v := range policies[i].Spec.Validations {
				got = got && evaluate(t, v.Expression, input) == true
			}
			if got != want {
				t.Errorf("%s, with preemption %t: got allowed: %t, want %t", row.name, i == 1, got, want)
			}
		}
	}
}
