// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// webhookDenies returns what the API server makes of the answer of an admission webhook with that code.
func webhookDenies(code int32) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code,
		Message: `admission webhook "drain.example.com" denied the request: not now`}}
}

// Where the eviction of the cheapest victim is denied, the next one is evicted, and it is said once. A budget and a
// server that is busy or broken do not keep a victim from plans.
func TestRefusedVictim(t *testing.T) {
	const refused = "event PreemptionRefused of high: on node node-1, the API refuses to evict pod low: " +
		"evict pod ns/low: "
	for _, row := range []struct {
		name    string
		refusal error
		evicted string
	}{
		{"429 of a webhook", webhookDenies(429), "middle"},
		{"403 of a webhook", webhookDenies(403), "middle"},
		{"400 of a webhook that says no code", webhookDenies(400), "middle"},
		{"409 of a webhook, which is no pod that has ended", webhookDenies(409), "middle"},
		{"500 of a webhook", webhookDenies(500), "middle"},
		{"a policy", apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "low", nil), "middle"},
		{"403", apierrors.NewForbidden(corev1.Resource("pods/eviction"), "low", nil), "middle"},
		{"a budget", budgetForbids(), "low"},
		{"403 of a budget", apierrors.NewForbidden(schema.GroupResource{Group: "policy",
			Resource: "poddisruptionbudget"}, "budget", errors.New("pdb disruptions allowed is negative")), "low"},
		{"a busy server", apierrors.NewGenericServerResponse(429, "create", corev1.Resource("pods"), "low",
			"Too many requests, please try again later.", 1, true), "low"},
		{"a webhook that does not answer", apierrors.NewInternalError(fmt.Errorf(
			`failed calling webhook "drain.example.com": connection refused`)), "low"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t)
			w.broken = true
			w.add("middle", 5, first)
			w.add("low", 1, second)
			w.add("high", 10, "")
			denies := true
			w.asked = func(pod string) error {
				if denies && pod == "low" {
					return row.refusal
				}
				return nil
			}
			got := w.pass(settle + period)
			isDenied := row.evicted == "middle"
			if told := strings.Count(got, refused); (told == 1) != isDenied || told > 1 {
				t.Errorf("got %s, want it said once: %t", got, isDenied)
			}
			denies = false
			got += w.pass(readPause)
			if !strings.Contains(got, "evict "+row.evicted+"\n") || strings.Count(got, "\nevict ") != 1 {
				t.Errorf("got %s, want only %s evicted", got, row.evicted)
			}
		})
	}
}

// A webhook that denies no dry run is met when the pod is evicted. Nothing is kept then, and the next plan is another.
func TestRefusedAfterDryRun(t *testing.T) {
	w := newWorld(t)
	w.add("middle", 5, first)
	w.add("low", 1, second)
	w.add("high", 10, "")
	w.evict = func(pod string) error {
		if pod == "low" {
			return webhookDenies(429)
		}
		return nil
	}
	if got := w.pass(settle + period); strings.Contains(got, "\nevict ") || !strings.HasSuffix(got, "\ngive back") ||
		!strings.Contains(got, "event PreemptionRefused of high") {
		t.Errorf("got %s, want it said, and the devices given back", got)
	}
	if got := w.pass(firstPause); !strings.Contains(got, "evict middle\n") {
		t.Errorf("got %s, want the other pod evicted", got)
	}
}

// A victim is asked about again after ten minutes, and forgotten when it is gone.
func TestRefusalIsForgotten(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first)
	w.add("lower", 0, second)
	w.add("high", 10, "")
	asked := 0
	w.asked = func(string) error {
		asked++
		return webhookDenies(429)
	}
	if w.pass(refusedFor / 2); asked != 2 {
		t.Errorf("got %d dry runs in five minutes, want one for each pod", asked)
	}
	if err := w.reads.Tracker().Delete(podResource, "ns", "lower"); err != nil {
		t.Fatal(err)
	}
	w.add("other", 20, second)
	w.pass(2 * maxPause)
	if _, ok := w.refused["lower"]; ok || len(w.refused) != 1 {
		t.Errorf("got %v, want only the pod that is left", w.refused)
	}
	w.asked = func(string) error { return nil }
	if got := w.pass(refusedFor / 2); !strings.Contains(got, "evict low\n") {
		t.Errorf("got %s, want the pod evicted once that is allowed", got)
	}
}

// Where the API refuses many victims, a round tries some of them, and the next ones the rest, long before the first are
// forgotten.
func TestManyRefusedVictims(t *testing.T) {
	w := newWorldOf(t, clustertest.SimNode{Name: "node-1", Profile: "dgx1-v100",
		Use: gpu.SharingMode{Sharing: gpu.Exclusive}})
	all := 0
	for g := range w.view.GPUs {
		w.add(fmt.Sprintf("low-%d", all), 1, g.Name)
		all++
	}
	w.change("low-7", func(p *corev1.Pod) { p.Spec.Priority = new(int32(5)) })
	w.add("high", 10, "")
	asked := map[string]int{}
	w.asked = func(pod string) error {
		if asked[pod]++; pod != "low-7" {
			return webhookDenies(429)
		}
		return nil
	}
	w.pass(settle - period)
	w.waiting["high"].tries = 10 // so far in vain
	if got := w.pass(2 * period); strings.Contains(got, "\nevict") || len(asked) != maxRefused {
		t.Errorf("got %s and %d dry runs in a round, want no eviction and %d", got, len(asked), maxRefused)
	}
	got := w.pass(time.Duration(all/maxRefused) * (readPause + firstPause))
	if !strings.Contains(got, "evict low-7\n") || strings.Count(got, "\nevict ") != 1 {
		t.Errorf("got %s, want one eviction", got)
	}
	for pod, n := range asked {
		if n != 1 || len(asked) != all {
			t.Errorf("got %d dry runs for %s, and %d pods, want one for each of %d", n, pod, len(asked), all)
		}
	}
}

// The text of a webhook may name a pod of another namespace, which the event does not.
func TestRefusalInAnotherNamespace(t *testing.T) {
	w := newWorld(t)
	h := &hold{uid: "high", Namespace: "other", Pod: "high", Node: "node-1"}
	const want = "event PreemptionRefused of high: on node node-1, the API refuses to evict a pod of another " +
		"namespace (UID uid)"
	err := w.refuse(t.Context(), h, victim{"ns", "low", "uid"}, webhookDenies(429), w.now)
	if got := strings.Join(w.writes, "\n"); err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}
