// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
)

// A pause that others write into pods is as long as it says, is forgotten with the pods of the owner, and concerns no
// owner of another namespace.
func TestPausesOfOthers(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first)
	w.add("other", 20, second)
	says := func(text string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations = map[string]string{waiting.PauseAnnotation: text}
			p.Spec.NodeSelector = map[string]string{"x": "y"}
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", UID: "rs", Controller: ptr.To(true)}}
		}
	}
	until := func(d time.Duration) string { return w.now.Add(d).UTC().Format(time.RFC3339) }
	w.add("forever", 5, "", says("10m0s until 9999-01-01T00:00:00Z"))
	w.pass(settle)
	if len(w.pauses) > 0 {
		t.Errorf("until the year 9999: got %v, want no pause", w.pauses)
	}
	w.add("a-while", 5, "", says("10m0s until "+until(5*time.Minute)))
	w.pass(settle)
	if p := w.pauses[ownerOf(waiting.Slim(w.pod("a-while")))]; p == nil || len(w.pauses) != 1 {
		t.Errorf("five minutes: got %v, want one pause", w.pauses)
	}
	foreign := w.pod("a-while")
	foreign.Namespace = "another"
	if w.pauses[ownerOf(waiting.Slim(foreign))] != nil {
		t.Error("got a pause of a pod of another namespace, want none")
	}
	for _, name := range []string{"forever", "a-while"} {
		if err := w.reads.Tracker().Delete(podResource, "ns", name); err != nil {
			t.Fatal(err)
		}
	}
	w.pass(period)
	if len(w.pauses) > 0 {
		t.Errorf("the pods are gone: got %v, want no pause", w.pauses)
	}
}

// Pods of one owner may differ: those of a Workflow, a RayCluster, or a StatefulSet with volumes. One that no victims
// help keeps no other one from preempting.
func TestDifferentPodsOfOneOwner(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"a step of a Workflow": func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"size": "large"} },
		"a replica with a volume elsewhere": func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.
				PersistentVolumeClaimVolumeSource{ClaimName: "data-0"}}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.add("low", 1, first)
			w.add("other", 20, second)
			of := func(p *corev1.Pod) {
				p.CreationTimestamp = metav1.NewTime(w.now)
				p.OwnerReferences = []metav1.OwnerReference{{Kind: "Workflow", UID: "o", Controller: ptr.To(true)}}
			}
			for _, o := range []runtime.Object{
				&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data-0"},
					Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}},
				&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
					NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
						NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.
							NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}}}}}}}},
			} {
				if err := w.reads.Tracker().Add(o); err != nil {
					t.Fatal(err)
				}
			}
			w.add("hopeless", 10, "", of, func(p *corev1.Pod) { p.CreationTimestamp = metav1.Time{} }, change)
			w.add("high", 10, "", of)
			if got := w.pass(settle + period); !strings.Contains(got, "evict low") {
				t.Errorf("got %s, want an eviction", got)
			}
		})
	}
}
