// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// A scheduler that has given up puts the pod elsewhere: what it was to be told does not count as taken.
func TestAnAnswerThatIsTooLateProposesNothing(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	pod := w.pod("p", 4, share5Gi)
	ctx, giveUp := context.WithCancel(t.Context())
	answered := make(chan int)
	w.mu.Lock() // another request takes long
	go func() { answered <- len(w.Prioritize(ctx, pod, w.nodes)) }()
	giveUp()
	w.mu.Unlock()
	if scores := <-answered; scores != 0 {
		t.Errorf("got %d scores, want none", scores)
	}
	if got, want := w.left("a"), "64 cores, GPUs 1000 1000"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A scheduler that gets no answer from one replica asks another one. Both count the pod once, when they see it.
func TestTwoReplicas(t *testing.T) {
	a := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "b", Profile: "t4-x2"})
	other := *a
	b := &other
	b.Extender = newExtender(a.view, a.known, a.policy, func() time.Time { return a.now })
	for _, w := range []*world{a, b} {
		w.setCPU("a", 64)
		w.setCPU("b", 128) // so that a is better
	}
	pod := a.pod("p", 4, share5Gi)
	same := func(when, ofA, ofB string) {
		t.Helper()
		if gotA, gotB := a.left("a"), b.left("a"); gotA != ofA || gotB != ofB {
			t.Errorf("%s: got %s and %s, want %s and %s", when, gotA, gotB, ofA, ofB)
		}
	}
	const free, used = "64 cores, GPUs 1000 1000", "60 cores, GPUs 666 1000"
	a.best(pod)
	same("one is asked", used, free)
	b.best(pod)
	same("both are asked", used, used)
	a.bind(pod, "a")
	same("one has seen the pod", used, used)
	b.bind(pod, "a")
	same("both have seen it", used, used)
	if _, err := a.allocate(pod, "a"); err != nil {
		t.Fatal(err)
	}
	same("its claim is seen", used, used)
	if n := len(a.usage.proposals) + len(b.usage.proposals); n != 0 {
		t.Errorf("got %d proposals at the end, want none", n)
	}
}

// A pod that names its node is never scored. Its CPUs count.
func TestAPodThatNamesANode(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	w.best(w.pod("p", 4, share5Gi))
	w.bind(newPod("static", 8), "a")
	if got, want := w.left("a"), "52 cores, GPUs 666 1000"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, outcome := range []string{outcomeTrue, outcomeElsewhere} {
		if got := testutil.ToFloat64(w.metrics.proposals.WithLabelValues(outcome)); got != 0 {
			t.Errorf("proposals %s: got %v of a pod that was not scored, want 0", outcome, got)
		}
	}
}

// A replica answers without a lease, as soon as it has read pods and nodes. The scheduler judges cordons and taints of
// nodes, so such a node has a score for the pods that tolerate them.
func TestAFollowerScoresACordonedNode(t *testing.T) {
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	node.Spec.Unschedulable = true
	node.Spec.Taints = []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoExecute}}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64")}
	pod := newPod("p", 4)
	pod.Spec.NodeName = "a"
	nodes := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, Items: []corev1.Node{node}}
	pods := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{*pod}}
	api := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		answer.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Get("sendInitialEvents") != "":
			http.Error(answer, "not served", http.StatusBadRequest)
		case r.URL.Query().Get("watch") != "":
			<-r.Context().Done()
		case strings.HasSuffix(r.URL.Path, "/nodes"):
			_ = json.NewEncoder(answer).Encode(nodes)
		default:
			_ = json.NewEncoder(answer).Encode(pods)
		}
	}))
	defer api.Close()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	c := &feature.Controller{View: w.view, Known: w.known, Guard: feature.NewGuard(), REST: &rest.Config{Host: api.URL}}
	c.ServeSchedulers = func(path string, handler http.Handler) {
		if x, ok := handler.(*Extender); ok && path == Path {
			w.Extender = x
		}
	}
	if err := Add(ctx, c, "pack"); err != nil { // there is no manager that could be asked for a lease
		t.Fatal(err)
	}
	defer func() {
		ctrlmetrics.Registry.Unregister(stranded{w.Extender})
		for _, m := range w.metrics.All() {
			ctrlmetrics.Registry.Unregister(m)
		}
	}()
	body := w.request(w.pod("q", 1, oneGPU), "a")
	status, answer := w.call(http.MethodPost, body)
	for i := 0; status != http.StatusOK && i < 3000; i++ {
		time.Sleep(10 * time.Millisecond)
		status, answer = w.call(http.MethodPost, body)
	}
	if want := `[{"Host":"a","Score":100}]`; strings.TrimSpace(answer) != want {
		t.Errorf("got %s, want %s", answer, want)
	}
	if got, want := w.left("a"), "59 cores, GPUs 0 1000"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
