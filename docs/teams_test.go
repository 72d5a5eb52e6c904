// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"sigs.k8s.io/yaml"

	quota "github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// The objects with which a team is onboarded have no misspelt field, and the label that the controller reads.
func TestTheObjectsOfATeam(t *testing.T) {
	_, text, _ := strings.Cut(read(t, "operate/teams.md"), "## Onboard a team")
	_, text, _ = strings.Cut(text, "\n```yaml\n")
	text, _, _ = strings.Cut(text, "\n```\n")
	var namespace corev1.Namespace
	objects := []any{&namespace, &quota.GPUQuota{}, &schedulingv1.PriorityClass{}, &corev1.ResourceQuota{},
		&rbacv1.RoleBinding{}, &rbacv1.ClusterRoleBinding{}}
	documents := strings.Split(text, "\n---\n")
	if len(documents) != len(objects) {
		t.Fatalf("got %d objects, want %d", len(documents), len(objects))
	}
	for i, document := range documents {
		if err := yaml.UnmarshalStrict([]byte(document), objects[i]); err != nil {
			t.Errorf("object %d: %v", i, err)
		}
	}
	if got := namespace.Labels[quota.QuotaLabel]; got != "on" {
		t.Errorf("got the label %s=%s, want on", quota.QuotaLabel, got)
	}
}
