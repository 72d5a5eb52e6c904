// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// A pod with an annotation for the policy hears once which policy it was, and which value is none.
func TestEventsAboutThePolicy(t *testing.T) {
	const hami = "hami.io/node-scheduler-policy"
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		want        string
	}{
		{"no annotation", map[string]string{"team": "ml"}, ""},
		{"a policy", map[string]string{PolicyAnnotation: "spread"},
			"PlacementPolicy: annotation gpu.nvidia.com/placement: nodes were scored with the policy spread"},
		{"HAMi's", map[string]string{hami: "binpack"},
			"PlacementPolicy: annotation hami.io/node-scheduler-policy: nodes were scored with the policy pack"},
		{"a mistake", map[string]string{PolicyAnnotation: "spred"}, "PlacementPolicyIgnored: annotation " +
			`gpu.nvidia.com/placement: got "spred", want pack or spread: nodes were scored with the policy pack`},
		{"a mistake, and another annotation counts", map[string]string{PolicyAnnotation: "binpack", hami: "spread"},
			"PlacementPolicyIgnored: annotation gpu.nvidia.com/placement: got \"binpack\", want pack or spread: " +
				"nodes were scored with the policy spread"},
		{"a long mistake", map[string]string{hami: strings.Repeat("x", 1<<18)}, "PlacementPolicyIgnored: annotation " +
			hami + `: got "` + strings.Repeat("x", maxAnnotation) + `", want binpack or spread: nodes were scored ` +
			"with the policy pack"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
			pod := w.pod("p", 1, share5Gi)
			pod.Annotations = tc.annotations
			w.best(w.exists(pod))
			w.now = w.now.Add(proposalLifetime)
			w.left("a") // forgets the proposal
			w.bind(pod, "a")
			if got := w.told(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// Pods that no scheduler asked for have no event, nor those that had their node when this replica began to read.
func TestNoEventsAboutPodsThatWereNotScored(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	w.usage.placed = make(chan placed, 2)
	pod := func(name string) *corev1.Pod {
		p := newPod(name, 1)
		p.Annotations = map[string]string{PolicyAnnotation: "spread"}
		return p
	}
	w.bind(w.exists(pod("of-another-scheduler")), "a")
	w.bind(pod("from-before"), "a")
	if got := w.told(); got != "" {
		t.Errorf("got %q, want no event", got)
	}
	for i := range 3 { // more than fit into the queue
		p := pod(fmt.Sprint("p", i))
		w.best(p)
		w.bind(p, "a")
	}
	if got := strings.Count(w.told(), "PlacementPolicy"); got != 2 {
		t.Errorf("got %d events, want 2", got)
	}
	w.bind(pod("p0"), "a") // its status has changed
	if n := len(w.usage.placed); n != 0 {
		t.Errorf("got %d more events after a change of the status, want none", n)
	}
}

// told returns the events of the pods that wait for one.
func (w *world) told() string {
	w.t.Helper()
	to := fake.NewClientBuilder().WithScheme(scheme.Scheme).Build()
	waiting := w.usage.placed
	queue := make(chan placed, 2*len(waiting))
	for len(waiting) > 0 {
		p := <-waiting
		queue <- p
		queue <- p // another replica writes the same event
	}
	w.usage.placed = queue
	ctx, end := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() {
		w.tell(ctx, to, feature.NewGuard())
		close(ended)
	}()
	for len(queue) > 0 {
		time.Sleep(time.Millisecond)
	}
	end()
	<-ended
	w.usage.placed = waiting
	var events corev1.EventList
	if err := to.List(w.t.Context(), &events); err != nil {
		w.t.Fatal(err)
	}
	var all []string
	for _, e := range events.Items {
		all = append(all, e.Reason+": "+e.Message)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}
