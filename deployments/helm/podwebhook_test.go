// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The webhook for pods is asked about few of them, and its absence stops none.
func TestWebhookForPods(t *testing.T) {
	var all admissionv1.ValidatingWebhookConfiguration
	if !rendered(t, template(t), "ValidatingWebhookConfiguration", "", &all) {
		t.Fatal("no webhooks")
	}
	i := slices.IndexFunc(all.Webhooks, func(w admissionv1.ValidatingWebhook) bool {
		return w.Name == "check-pods.gpu.nvidia.com"
	})
	if i < 0 || *all.Webhooks[i].FailurePolicy != admissionv1.Ignore {
		t.Fatalf("got %v, want a webhook for pods that is ignored while it is not there", all.Webhooks)
	}
	uses := func(names ...string) (all corev1.ResourceRequirements) {
		for _, name := range names {
			all.Claims = append(all.Claims, corev1.ResourceClaim{Name: name})
		}
		return all
	}
	with := func(r corev1.ResourceRequirements, limit corev1.ResourceName) corev1.ResourceRequirements {
		r.Limits = corev1.ResourceList{limit: resource.MustParse("1")}
		return r
	}
	at := func(volume, path string) []corev1.VolumeMount {
		return []corev1.VolumeMount{{Name: volume, MountPath: path}}
	}
	for _, row := range []struct {
		name string
		main corev1.Container
		want bool
	}{
		{"a claim", corev1.Container{Resources: uses("a")}, false},
		{"a claim and memory", corev1.Container{Resources: with(uses("a"), "memory")}, false},
		{"two claims", corev1.Container{Resources: uses("a", "b")}, true},
		{"a claim and an extended resource", corev1.Container{Resources: with(uses("a"), "nvidia.com/gpu")}, true},
		{"an extended resource", corev1.Container{Resources: with(uses(), "nvidia.com/gpu")}, false},
		{"a claim, and a volume of the host at /dev/shm",
			corev1.Container{Resources: uses("a"), VolumeMounts: at("host", "/dev/shm")}, true},
		{"a claim, and an emptyDir at /dev/shm",
			corev1.Container{Resources: uses("a"), VolumeMounts: at("empty", "/dev/shm")}, false},
		{"a claim, and an emptyDir at /dev/shm/",
			corev1.Container{Resources: uses("a"), VolumeMounts: at("empty", "/dev/shm/")}, true},
		{"a claim, and a volume of the host elsewhere",
			corev1.Container{Resources: uses("a"), VolumeMounts: at("host", "/dev/shm2")}, false},
		{"no claim, and a volume of the host at /dev/shm",
			corev1.Container{VolumeMounts: at("host", "/dev/shm")}, false},
	} {
		for _, kind := range []string{"container", "init container"} {
			t.Run(row.name+", "+kind, func(t *testing.T) {
				spec := corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "a"}, {Name: "b"}},
					Volumes: []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{
						HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}}, {Name: "empty",
						VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
					Containers: []corev1.Container{row.main}}
				if kind != "container" {
					spec.InitContainers, spec.Containers = spec.Containers, []corev1.Container{{Name: "other"}}
				}
				got := true
				for _, condition := range all.Webhooks[i].MatchConditions {
					got = got && evaluate(t, condition.Expression,
						map[string]any{"object": asJSON(t, corev1.Pod{Spec: spec})}) == true
				}
				if got != row.want {
					t.Errorf("got %t, want %t", got, row.want)
				}
			})
		}
	}
}
