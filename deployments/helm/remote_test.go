// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Whoever labels a server pod, or the template of one, in another namespace is warned.
func TestRemoteServerPolicy(t *testing.T) {
	policy := policyOf(t, "gpu-dra-driver-gpus-remote-servers")
	server := metav1.ObjectMeta{Labels: map[string]string{"gpu.nvidia.com/remote-server": "lupine"}}
	other := metav1.ObjectMeta{Labels: map[string]string{"app": "server"}}
	pod := func(meta metav1.ObjectMeta) any {
		return asJSON(t, corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod"}, ObjectMeta: meta})
	}
	deployment := func(meta, of metav1.ObjectMeta) any {
		return asJSON(t, appsv1.Deployment{TypeMeta: metav1.TypeMeta{Kind: "Deployment"}, ObjectMeta: meta,
			Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{ObjectMeta: of}}})
	}
	const warning = "serves a GPU of gpu.example.com only in the namespace gpu-dra-driver"
	for _, row := range []struct {
		name   string
		object any
		want   string
	}{
		{"a server pod", pod(server), warning},
		{"another pod", pod(other), ""},
		{"a pod without labels", pod(metav1.ObjectMeta{}), ""},
		{"a Deployment of server pods", deployment(other, server), warning},
		{"a Deployment that has the label itself", deployment(server, other), ""},
		{"a Deployment of pods without labels", deployment(other, metav1.ObjectMeta{}), ""},
	} {
		t.Run(row.name, func(t *testing.T) { requireAnswer(t, policy.answer(t, "", nil, row.object), row.want) })
	}
}
