// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/placement"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// left returns what the next pod finds on the node: "62 cores, GPUs 666 1000", in thousandths.
func (w *world) left(name string) string {
	w.usage.mu.Lock()
	defer w.usage.mu.Unlock()
	ahead := w.usage.ahead("")[name]
	if ahead == nil {
		ahead = &proposal{}
	}
	text := fmt.Sprintf("%d cores, GPUs", (w.usage.nodes[name].cpu-w.usage.used[name].cpu-ahead.host.cpu)/1000)
	w.view.Nodes([]string{name}, func(_ int, devices *cluster.NodeDevices) {
		w.scratch.reset(devices, ahead.takes, nil)
		for _, g := range w.scratch.gpus {
			text += fmt.Sprintf(" %d", g.Idle)
		}
	})
	return text
}

// What was proposed counts as taken until it is seen, or does not come true; nothing counts twice.
func TestProposals(t *testing.T) {
	const (
		free     = "64 cores, GPUs 1000 1000"
		proposed = "60 cores, GPUs 666 1000" // a third of the memory is taken
	)
	type step struct {
		name string
		do   func(*world, *corev1.Pod)
		want string // of node a
	}
	ask := step{"it is asked for", func(w *world, p *corev1.Pod) { w.best(p) }, proposed}
	allocated := step{"its claim is seen", func(w *world, p *corev1.Pod) {
		if _, err := w.allocate(p, "a"); err != nil {
			w.t.Fatal(err)
		}
	}, proposed}
	bound := step{"it is seen", func(w *world, p *corev1.Pod) { w.bind(p, "a") }, proposed}
	wait := func(d time.Duration, want string) step {
		return step{"wait " + d.String(), func(w *world, _ *corev1.Pod) { w.now = w.now.Add(d) }, want}
	}
	for _, tc := range []struct {
		name    string
		steps   []step
		outcome string
	}{
		{"claim, then pod", []step{ask, allocated, bound, wait(time.Hour, proposed)}, outcomeTrue},
		{"pod, then claim", []step{ask, bound, allocated, wait(time.Hour, proposed)}, outcomeTrue},
		{"the pod is seen, its claim is not", []step{ask, bound, wait(proposalLifetime, "60 cores, GPUs 1000 1000")},
			outcomeTrue},
		{"nothing is seen", []step{ask, wait(proposalLifetime-1, proposed), wait(1, free)}, outcomeExpired},
		{"the claim is seen, the pod is not", []step{ask, allocated, wait(proposalLifetime, "64 cores, GPUs 666 1000")},
			outcomeExpired},
		{"it is asked for again", []step{ask, wait(proposalLifetime-1, proposed), ask, wait(1, proposed),
			wait(proposalLifetime-1, free)}, outcomeExpired},
		{"it comes to another node", []step{ask, {"it is seen on b",
			func(w *world, p *corev1.Pod) { w.bind(p, "b") }, free}}, outcomeElsewhere},
		{"it is deleted", []step{ask, {"it is deleted", func(w *world, p *corev1.Pod) {
			w.usage.deletePod(&podSummary{ObjectMeta: metav1.ObjectMeta{UID: p.UID}})
		}, free}}, ""},
		{"it comes and ends", []step{ask, allocated, bound, {"it has ended", func(w *world, p *corev1.Pod) {
			w.usage.deletePod(&podSummary{ObjectMeta: metav1.ObjectMeta{UID: p.UID}})
			w.view.DeleteClaim(types.NamespacedName{Namespace: "ns", Name: "p"})
		}, free}}, outcomeTrue},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"},
				clustertest.SimNode{Name: "b", Profile: "t4-x2"})
			w.setCPU("b", 128) // so that a is better
			pod := w.pod("p", 4, share5Gi)
			for _, s := range tc.steps {
				s.do(w, pod)
				if got := w.left("a"); got != s.want {
					t.Errorf("%s: got %s, want %s", s.name, got, s.want)
				}
			}
			for _, outcome := range []string{outcomeTrue, outcomeElsewhere, outcomeExpired} {
				want := 0.0
				if outcome == tc.outcome {
					want = 1
				}
				if got := testutil.ToFloat64(w.metrics.proposals.WithLabelValues(outcome)); got != want {
					t.Errorf("proposals %s: got %v, want %v", outcome, got, want)
				}
			}
			if len(w.usage.proposals) != 0 {
				t.Errorf("got %d proposals at the end, want none", len(w.usage.proposals))
			}
		})
	}
}

// The claim of a pod with extended resources is known when the pod is seen.
func TestProposalForExtendedResources(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	pod := newPod("p", 4)
	pod.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("1")
	const used = "60 cores, GPUs 0 1000"
	same := func(when, want string) {
		t.Helper()
		if got := w.left("a"); got != want {
			t.Errorf("%s: got %s, want %s", when, got, want)
		}
	}
	w.best(pod)
	same("it is asked for", used)
	w.claim("special", oneGPU)
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "special"}
	w.bind(pod, "a")
	same("it is seen", used)
	if _, err := w.allocate(newPod("", 0, "special"), "a"); err != nil {
		t.Fatal(err)
	}
	same("its claim is seen", used)
	if len(w.usage.proposals) != 0 {
		t.Errorf("got %d proposals at the end, want none", len(w.usage.proposals))
	}
}

// 500 pods are scored before any of them is seen, and none is put where there is no room left.
func TestBurst(t *testing.T) {
	const pods, perGPU = 500, 3
	var nodes []clustertest.SimNode
	for i := range 100 {
		nodes = append(nodes, clustertest.SimNode{Name: fmt.Sprintf("n%02d", i), Profile: "t4-x2"})
	}
	w := newWorld(t, nodes...)
	gpus, used := map[string]int{}, map[string]bool{}
	for i := range pods {
		_, at := w.best(w.pod(fmt.Sprint("p", i), 1, share5Gi))
		if gpus[at]++; gpus[at] > perGPU {
			t.Fatalf("pod %d: %d pods on %s, which has room for %d", i, gpus[at], at, perGPU)
		}
		node, _, _ := strings.Cut(at, " ")
		used[node] = true
	}
	if want := (pods + 2*perGPU - 1) / (2 * perGPU); len(used) != want {
		t.Errorf("got pods on %d nodes, want %d full ones", len(used), want)
	}
}

// Another scheduler allocates, too: what the view sees of it counts, and a proposal that it made impossible ends.
func TestASecondAllocator(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "b", Profile: "t4-x2"})
	w.setCPU("b", 128)
	pod := w.pod("p", 1, "requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}]")
	if _, at := w.best(pod); !strings.HasPrefix(at, "a ") {
		t.Fatalf("got %s, want a", at)
	}
	other := w.pod("other", 1, oneGPU)
	if _, err := w.allocate(other, "a"); err != nil {
		t.Fatal(err)
	}
	w.bind(other, "a")
	if got := w.schedule(pod); got != "b gpu-3b-00-0 gpu-af-00-0" {
		t.Errorf("after another pod has a GPU of a: got %s, want both GPUs of b", got)
	}
}

// Slices, claims, nodes and pods change while nodes are scored. Run it with the race detector.
func TestChangesWhileNodesAreScored(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"},
		clustertest.SimNode{Name: "b", Profile: "dgx-a100"})
	pods := []*corev1.Pod{w.pod("share", 1, share5Gi), w.pod("whole", 1, oneGPU), newPod("cpu", 1),
		w.pod("mig", 1, "requests: [{name: mig, exactly: {deviceClassName: mig-1g.10gb.nvidia.com}}]")}
	held := w.pod("held", 1, oneGPU)
	if _, err := w.allocate(held, "a"); err != nil {
		t.Fatal(err)
	}
	holder := cluster.SlimClaim(w.claims[types.NamespacedName{Namespace: "ns", Name: "held"}])
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, change := range []func(){
		func() {
			for _, s := range w.slices {
				w.view.DeleteSlice(s.Name)
				w.view.SetSlice(w.view.SlimSlice(s))
			}
		},
		func() {
			w.view.SetClaim(holder)
			w.view.DeleteClaim(types.NamespacedName{Namespace: "ns", Name: "held"})
		},
		func() { w.setCPU("a", 64); w.bind(held, "a") },
	} {
		all.Go(func() {
			for ctx.Err() == nil {
				change()
			}
		})
	}
	for i := range 200 {
		status, answer := w.call("POST", w.request(pods[i%len(pods)], "a", "b"))
		if status != 200 || strings.Count(answer, "Host") != 2 {
			t.Errorf("got %d %s, want the scores of both nodes", status, answer)
		}
	}
	stop()
	all.Wait()
}

// FuzzHandler sends any request: nothing panics, and each node gets a score in the range.
func FuzzHandler(f *testing.F) {
	w := newWorld(f, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	w.claim("share", share5Gi)
	f.Add([]byte(w.request(newPod("p", 1, "share"), "a", "b")))
	f.Add([]byte(`{"Pod":{"spec":{"containers":[{"resources":{"requests":{"nvidia.com/gpu":"-1","cpu":"1e30"}}}],` +
		`"resourceClaims":[{"name":"x"},{"name":"y","resourceClaimTemplateName":"z"}]}},"NodeNames":["a","a",""]}`))
	f.Add([]byte(`{"Pod":{},"NodeNames":[]}`))
	f.Add([]byte(`{"Pod":null,"NodeNames":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		w.t = t
		status, answer := w.call("POST", string(body))
		var scores []struct{ Score int64 }
		if status != 200 {
			return
		}
		if err := json.Unmarshal([]byte(answer), &scores); err != nil {
			t.Fatalf("%v in %s", err, answer)
		}
		for _, s := range scores {
			if s.Score < 0 || s.Score > MaxScore {
				t.Errorf("got the score %d, want 0 to %d", s.Score, MaxScore)
			}
		}
	})
}

// Requests about pods that do not exist change nothing but the proposals, which end.
func TestPodsThatDoNotExist(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	for i := range 3 {
		w.best(w.pod(fmt.Sprint("p", i), 60, share5Gi))
	}
	w.now = w.now.Add(proposalLifetime)
	if got := w.left("a"); got != "64 cores, GPUs 1000 1000" {
		t.Errorf("got %s, want an idle node", got)
	}
	if d, shapes := len(w.usage.demand.requests), len(w.usage.shapes); d+shapes != 0 {
		t.Errorf("got the demand of %d pods and %d shapes, want none", d, shapes)
	}
	w.best(w.exists(w.pod("p", 4, share5Gi)))
	if d, shapes := len(w.usage.demand.requests), len(w.usage.shapes); d != 1 || shapes != 1 {
		t.Errorf("got the demand of %d pods and %d shapes, want one of each", d, shapes)
	}
}

// After a broken watch, a pod of the same name replaces the one that is gone.
func TestAPodIsReplaced(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	events := feature.EventHandler(feature.NewGuard(), w.usage.setPod, w.usage.deletePod)
	summary := func(uid string) *podSummary {
		return &podSummary{ObjectMeta: metav1.ObjectMeta{Name: "db-0", UID: types.UID(uid)},
			podUse: podUse{node: "a", host: host{cpu: 4000}}}
	}
	events.OnAdd(summary("1"), false)
	events.OnUpdate(summary("1"), summary("2"))
	if got := w.left("a"); got != "60 cores, GPUs 1000 1000" {
		t.Errorf("got %s, want the CPUs of one pod", got)
	}
	events.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: summary("2")})
	if got := w.left("a"); got != "64 cores, GPUs 1000 1000" {
		t.Errorf("after a deletion that was not seen: got %s, want an idle node", got)
	}
}

// A claim for devices of other drivers does not keep the proposal after the pod's GPUs are known.
func TestProposalBesideAnotherDriver(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	w.addClass(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}})
	share, nic := w.claim("share", share5Gi), w.claim("nic", `requests: [{name: nic, exactly: {deviceClassName: nic}}]`)
	w.best(newPod("p", 4, nic, share))
	if _, err := w.allocate(newPod("p", 4, share), "a"); err != nil {
		t.Fatal(err)
	}
	if got := w.left("a"); got != "60 cores, GPUs 666 1000" {
		t.Errorf("got %s, want one share", got)
	}
}

// A slice that is published again does not end what was proposed.
func TestProposalsOutliveAnUpdateOfASlice(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	w.best(w.pod("p", 4, share5Gi))
	for _, s := range w.slices {
		w.view.SetSlice(s.DeepCopy())
	}
	if got := w.left("a"); got != "60 cores, GPUs 666 1000" {
		t.Errorf("got %s, want one share", got)
	}
}

// What nodes with GPUs have is compared with what pods request: where host memory is scarce, the requests decide.
func TestHostMemoryIsScarce(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "b", Profile: "t4-x2"})
	w.nodes = append(w.nodes, "cpu")
	for name, memory := range map[string]int64{"a": 40 << 10, "b": 60 << 10, "cpu": 1 << 20} {
		w.usage.setNode(&nodeSummary{metav1.ObjectMeta{Name: name}, nodeUse{host: host{64_000, memory}}})
	}
	if d := w.usage.demand.now(w.now, w.usage.nodes); d.Scarcity != 0 {
		t.Errorf("got the scarcity %v without pods, want 0", d.Scarcity)
	}
	for i := range 2 {
		p := w.pod(fmt.Sprint("large-", i), 1, oneGPU)
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("300Gi")
		w.exists(p)
		w.Prioritize(t.Context(), p, w.nodes)
	}
	w.now = w.now.Add(supplyPeriod)
	d := w.usage.demand.now(w.now, w.usage.nodes)
	if want := (placement.Supply{CPU: 128_000, Memory: 100 << 10, Amount: 4 * placement.Whole}); d.Scarcity != 1 ||
		w.usage.demand.sums.Supply != want || len(d.Shapes) != 1 || d.Shapes[0].Memory != 300<<10 {
		t.Errorf("got %+v of %+v, want one shape of 300 GiB, and the scarcity 1 of %+v", d, w.usage.demand.sums.Supply,
			want)
	}
}
