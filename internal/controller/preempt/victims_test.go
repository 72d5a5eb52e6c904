// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/moves"
)

// A pod that somebody deletes, and that takes long to end, keeps no other one from preempting.
func TestDeletedPod(t *testing.T) {
	for grace, want := range map[time.Duration]bool{endsSoon: false, time.Hour: true, 365 * 24 * time.Hour: true} {
		w := newWorld(t)
		w.add("deleted", 0, first, func(p *corev1.Pod) {
			p.DeletionTimestamp = ptr.To(metav1.NewTime(w.now.Add(grace))) // as the API server writes it
		})
		w.add("low", 1, second)
		w.add("high", 10, "")
		if got := w.pass(15 * time.Second); strings.Contains(got, "evict low") != want {
			t.Errorf("it ends in %v: got %s, want an eviction: %t", grace, got, want)
		}
	}
}

// The claim that a pod of a ReplicaSet names is not free when the pod ends: the next one uses it.
func TestClaimOfReplacedPod(t *testing.T) {
	w := newWorld(t)
	w.add("low", 0, first, func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet",
			Controller: ptr.To(true)}}
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("shared")}}
	})
	claims := resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
	o, err := w.reads.Tracker().Get(claims, "ns", "low")
	claim, ok := o.(*resourceapi.ResourceClaim)
	if err != nil || !ok {
		t.Fatal(o, err)
	}
	claim.Name, claim.OwnerReferences = "shared", nil
	if err := errors.Join(w.reads.Tracker().Delete(claims, "ns", "low"), w.reads.Tracker().Add(claim)); err != nil {
		t.Fatal(err)
	}
	w.add("other", 20, second)
	w.add("high", 10, "")
	if got := w.pass(time.Minute); got != "" {
		t.Errorf("it runs: got %s, want nothing", got)
	}
	w.change("low", func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(w.now.Add(endsSoon))) })
	w.change("other", func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](1) })
	if got := w.pass(readPause + maxPause); !strings.Contains(got, "evict other") {
		t.Errorf("it ends: got %s, want the other pod evicted", got)
	}
}

// endsSoon is how soon a pod ends for which others wait.
const endsSoon = 30 * time.Second

// Where no devices are kept, a victim that takes an hour to end is not taken for free by the next pod.
func TestSecondPodWithoutRules(t *testing.T) {
	w := newWorld(t)
	w.add("low-a", 1, first)
	w.add("low-b", 1, second)
	w.add("high-a", 10, "")
	if got := w.pass(settle + period); !strings.Contains(got, "evict low-a") {
		t.Fatalf("got %s, want an eviction", got)
	}
	w.change("low-a", func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(w.now.Add(time.Hour))) })
	w.change("high-a", nominated)
	w.add("high-b", 10, "")
	if got := w.pass(2 * readPause); !strings.Contains(got, "evict low-b") {
		t.Errorf("got %s, want another eviction", got)
	}
}

// A victim may take a year to end. Its devices are not waited for that long, and nobody is blamed for it.
func TestVictimThatDoesNotEnd(t *testing.T) {
	w := newWorld(t)
	w.add("slow", 0, first, func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](365 * 24 * 3600)
	})
	w.add("low", 1, second)
	w.add("high", 10, "")
	if got := w.pass(settle + period); !strings.Contains(got, "evict slow") {
		t.Fatalf("got %s, want an eviction", got)
	}
	w.change("slow", func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(w.now.AddDate(1, 0, 0))) })
	w.change("high", nominated)
	if got := w.pass(time.Hour); got != "" {
		t.Errorf("in an hour: got %s, want nothing", got)
	}
	if got := w.pass(keeps + settle); !strings.HasSuffix(got, "give back") || len(w.pauses) > 0 {
		t.Errorf("later: got %s, the pauses %v, want the devices given back, and no pause", got, w.pauses)
	}
	w.change("high", func(p *corev1.Pod) { p.Status.NominatedNodeName = "" })
	if got := w.pass(maxPause + readPause); !strings.Contains(got, "evict low") {
		t.Errorf("then: got %s, want another victim", got)
	}
}

// A grace period may be any number that is not negative. So may the time in a rule that somebody else writes.
func TestGrace(t *testing.T) {
	w := newWorld(t)
	for _, grace := range []int64{0, 30, 3600, 9_300_000_000, 18_446_744_074, 1<<63 - 1} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace}}
		got := newHold(&corev1.Pod{}, &moves.Preemption{Victims: []*corev1.Pod{pod}}, w.now).Until.Sub(w.now)
		if want := keeps + time.Duration(min(grace, 3600))*time.Second; got != want {
			t.Errorf("%d s: got devices kept for %v, want %v", grace, got, want)
		}
	}
	w.add("high", 10, "")
	h := &hold{uid: "high", isRead: true, Until: w.now.AddDate(1, 0, 0)}
	if err := w.compare(t.Context(), h, w.pod("high"), w.now); err != nil || h.Until.After(w.now.Add(2*time.Hour)) {
		t.Errorf("got devices kept until %v, %v, want an hour", h.Until, err)
	}
}

// A tenant of the lowest priority does not make its pods no victims by what it writes into them.
func TestNoExemption(t *testing.T) {
	named := func(claim string) corev1.PodResourceClaim {
		return corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim}
	}
	for _, row := range []struct {
		name   string
		owner  metav1.OwnerReference
		claims []corev1.PodResourceClaim // beside its own
		whole  bool                      // its own is one by name, too
	}{
		{"an owner that creates no pods, and its claim by name",
			metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap"}, nil, true},
		{"a second claim that has no device", metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet"},
			[]corev1.PodResourceClaim{named("none")}, false},
		{"a node as the owner", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Node"}, nil, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t)
			w.add("low", 0, first, func(p *corev1.Pod) {
				row.owner.Controller = ptr.To(true)
				p.OwnerReferences = []metav1.OwnerReference{row.owner}
				if row.whole {
					p.Spec.ResourceClaims = []corev1.PodResourceClaim{named("low")}
				}
				p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, row.claims...)
			})
			w.add("other", 20, second)
			w.add("high", 10, "")
			if got := w.pass(settle + period); !strings.Contains(got, "evict low") {
				t.Errorf("got %s, want an eviction", got)
			}
		})
	}
}
