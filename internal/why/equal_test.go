// SPDX-License-Identifier: Apache-2.0

package why

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// Equal pods are explained once. Each answer is the same as that of a pod that is explained alone.
func TestEqualPods(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(second *corev1.Pod, its *resourceapi.ResourceClaim)
		want   int // answers
	}{
		{"of one Job", func(*corev1.Pod, *resourceapi.ResourceClaim) {}, 1},
		{"with other volumes", func(second *corev1.Pod, _ *resourceapi.ResourceClaim) {
			second.Spec.Volumes = []corev1.Volume{{Name: "token-x"}}
		}, 1},
		{"with another node selector", func(second *corev1.Pod, _ *resourceapi.ResourceClaim) {
			second.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "b"}
		}, 2},
		{"with a claim that has changed", func(_ *corev1.Pod, its *resourceapi.ResourceClaim) {
			its.Spec.Devices.Requests[0].Exactly.Count = 2
		}, 2},
		{"with a claim of its own", func(second *corev1.Pod, its *resourceapi.ResourceClaim) {
			second.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &its.Name}
		}, 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
			s.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "reserved", Effect: corev1.TaintEffectNoSchedule}}
			mustHold(t, s, claim(t, "train", gpus(", count: 2")))
			s.Templates = []*resourceapi.ResourceClaimTemplate{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns",
				Name: "t"}}}
			// Names that are parts of others, or words of an answer.
			for i, name := range []string{"a", "claim"} {
				c := claim(t, []string{"train-1", "gpu"}[i], gpus(", count: 3"))
				p := pod(name)
				c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name,
					UID: types.UID(name), Controller: ptr.To(true)}}
				p.UID = types.UID(name)
				useTemplate(p, c)
				if i == 1 {
					row.change(p, c)
				}
				s.Claims, s.Pods = append(s.Claims, c), append(s.Pods, p)
			}
			all := NewExplainer(s, Options{})
			for _, name := range []string{"a", "claim"} {
				got, err := all.Pod(t.Context(), "ns", name)
				if err != nil {
					t.Fatal(err)
				}
				alone, err := Pod(t.Context(), s, "ns", name)
				if err != nil {
					t.Fatal(err)
				}
				if got, want := text(t, got), text(t, alone); got != want || strings.Contains(got, "or:") {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			}
			if got, repeated := len(all.c.answers), all.Repeated(); got != row.want || repeated != 2-row.want {
				t.Errorf("got %d answers, %d of them again, want %d and %d", got, repeated, row.want, 2-row.want)
			}
		})
	}
}
