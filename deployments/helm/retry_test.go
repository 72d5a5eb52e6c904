// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// The controller may update only a class that no device matches, and only where it retries pods.
func TestRetry(t *testing.T) {
	const class = "retry.gpu.nvidia.com"
	for _, tc := range []struct {
		name string
		args []string
		want bool
	}{
		{"the defaults", nil, true},
		{"Kubernetes 1.36", []string{"--kube-version", "v1.36.0"}, true},
		{"Kubernetes 1.35, which has no shares", []string{"--kube-version", "v1.35.4"}, false},
		{"switched off", []string{"--set", "controller.retry.enabled=false"}, false},
		{"somebody else makes the classes", []string{"--set", "deviceClasses.create=false"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := template(t, tc.args...)
			var d appsv1.Deployment
			rendered(t, text, "Deployment", "controller", &d)
			if got := slices.Contains(d.Spec.Template.Spec.Containers[0].Args, "--retry-class="+class); got != tc.want {
				t.Errorf("got the argument: %t, want %t", got, tc.want)
			}
			var role rbacv1.ClusterRole
			rendered(t, text, "ClusterRole", "controller", &role)
			updates := false
			for _, r := range role.Rules {
				if slices.Contains(r.Resources, "deviceclasses") && slices.Contains(r.Verbs, "patch") {
					updates = true
					if !slices.Equal(r.ResourceNames, []string{class}) {
						t.Errorf("got the right to update %v, want only %s", r.ResourceNames, class)
					}
				}
			}
			if updates != tc.want {
				t.Errorf("got the right to update a class: %t, want %t", updates, tc.want)
			}
			if !tc.want {
				return
			}
			var c resourceapi.DeviceClass
			rendered(t, text, "DeviceClass", class, &c)
			if len(c.Spec.Selectors) != 1 || c.Spec.Selectors[0].CEL.Expression != "false" {
				t.Errorf("got the selectors %v, want one that no device matches", c.Spec.Selectors)
			}
		})
	}
}
