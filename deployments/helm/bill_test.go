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

// The controller counts GPU seconds with its own ConfigMap, which has the prices.
func TestBill(t *testing.T) {
	const name = "x-gpu-dra-driver-controller-bill"
	for _, tc := range []struct {
		name   string
		args   []string
		prices string // "": nothing is counted
	}{
		{"the defaults", nil, "USD {}"},
		{"prices", []string{"--set-json", `controller.bill={"currency":"EUR","prices":{"Tesla T4":0.35,"*":1}}`},
			`EUR {"*":1,"Tesla T4":0.35}`},
		{"with the values of an older chart", []string{"--set", "controller.bill=null"}, "USD {}"},
		{"switched off", []string{"--set", "controller.bill.enabled=false"}, ""},
		{"without the controller", []string{"--set", "controller.enabled=false"}, ""},
		{"somebody else gives rights", []string{"--set", "rbac.create=false"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := template(t, tc.args...)
			if tc.prices == "" {
				if strings.Contains(text, "-bill") {
					t.Error("something is left of it")
				}
				return
			}
			var of corev1.ConfigMap
			rendered(t, text, "ConfigMap", name, &of)
			if got := of.Data["currency"] + " " + of.Data["prices"]; got != tc.prices {
				t.Errorf("got the prices %s, want %s", got, tc.prices)
			}
			var controller appsv1.Deployment
			rendered(t, text, "Deployment", "controller", &controller)
			if !slices.Contains(controller.Spec.Template.Spec.Containers[0].Args, "--bill="+name) {
				t.Error("the controller has no argument")
			}
			var role rbacv1.Role
			rendered(t, text, "Role", "controller", &role)
			if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Equal(r.Resources, []string{"configmaps"}) &&
					slices.Equal(r.ResourceNames, []string{name}) && slices.Equal(r.Verbs, []string{"get", "update"})
			}) {
				t.Errorf("got %v, want get and update of the ConfigMap and no other", role.Rules)
			}
		})
	}
}
