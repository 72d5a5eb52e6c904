// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// Plugins publish partitions on demand where the controller asks them to, and both know of the same ConfigMap.
func TestOnDemand(t *testing.T) {
	const name = "x-gpu-dra-driver-partition-requests"
	for _, tc := range []struct {
		name string
		args []string
		want bool
	}{
		{"the defaults", nil, true},
		{"switched off", []string{"--set", "controller.onDemand.enabled=false"}, false},
		{"Kubernetes 1.36", []string{"--kube-version", "v1.36.0"}, true},
		{"Kubernetes 1.35, which has no partitions", []string{"--kube-version", "v1.35.4"}, false},
		{"without the controller", []string{"--set", "controller.enabled=false"}, false},
		{"with the values of an older chart", []string{"--set", "controller.onDemand=null"}, true},
		{"somebody else gives rights", []string{"--set", "rbac.create=false"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := template(t, tc.args...)
			var plugin appsv1.DaemonSet
			rendered(t, text, "DaemonSet", "kubelet-plugin", &plugin)
			if got := slices.ContainsFunc(plugin.Spec.Template.Spec.Containers[0].Env, func(e corev1.EnvVar) bool {
				return e.Name == "PARTITION_REQUESTS" && e.Value == "default/"+name
			}); got != tc.want {
				t.Errorf("got the variable of the plugin: %t, want %t", got, tc.want)
			}
			if !tc.want {
				if strings.Contains(text, "partition-requests") {
					t.Error("something is left of it")
				}
				return
			}
			var controller appsv1.Deployment
			rendered(t, text, "Deployment", "controller", &controller)
			if !slices.Contains(controller.Spec.Template.Spec.Containers[0].Args, "--partition-requests="+name) {
				t.Error("the controller has no argument")
			}
			var requests corev1.ConfigMap
			rendered(t, text, "ConfigMap", name, &requests)
			for of, verbs := range map[string][]string{"controller": {"patch"}, name: {"list", "watch"}} {
				var role rbacv1.Role
				rendered(t, text, "Role", of, &role)
				if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
					return slices.Equal(r.Resources, []string{"configmaps"}) &&
						slices.Equal(r.ResourceNames, []string{name}) && slices.Equal(r.Verbs, verbs)
				}) {
					t.Errorf("role %s: got %v, want %v of the ConfigMap and no other", of, role.Rules, verbs)
				}
			}
		})
	}
}
