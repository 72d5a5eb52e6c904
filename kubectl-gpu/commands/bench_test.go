// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// fleet returns a cluster with nodes of eight whole H100. Every second GPU is held by a claim.
func fleet(t testing.TB, nodes int) *cluster.Snapshot {
	t.Helper()
	like := published(t, "like", "dgx-h100")[0]
	like.Spec.Pool.ResourceSliceCount = 1
	for i := range like.Spec.Devices {
		like.Spec.Devices[i].ConsumesCounters = nil
	}
	s := &cluster.Snapshot{Unread: map[string]error{}}
	for i := range nodes {
		name := fmt.Sprintf("node-%04d", i)
		slice := like.DeepCopy()
		slice.Name, slice.Spec.NodeName, slice.Spec.Pool.Name = name, &name, name
		s.Nodes, s.Slices = append(s.Nodes, node(name)), append(s.Slices, slice)
		for j := 0; j < len(slice.Spec.Devices); j += 2 {
			s.Claims = append(s.Claims, claim(fmt.Sprint(name, "-", j), name, slice.Spec.Devices[j].Name))
		}
	}
	return s
}

// fastServer returns a server that encodes the snapshot once.
func fastServer(t testing.TB, of *cluster.Snapshot) *apiServer {
	t.Helper()
	var nodes corev1.NodeList
	for _, n := range of.Nodes {
		nodes.Items = append(nodes.Items, *n)
	}
	var slices resourceapi.ResourceSliceList
	for _, s := range of.Slices {
		slices.Items = append(slices.Items, *s)
	}
	var claims resourceapi.ResourceClaimList
	for _, c := range of.Claims {
		claims.Items = append(claims.Items, *c)
	}
	return &apiServer{answers: map[string]http.HandlerFunc{nodesPath: encoded(t, &nodes),
		slicesPath: encoded(t, &slices), claimsPath: encoded(t, &claims)}}
}

// encoded answers with the object as protobuf.
func encoded(t testing.TB, object runtime.Object) http.HandlerFunc {
	t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		t.Fatal(err)
	}
	object.GetObjectKind().SetGroupVersionKind(kinds[0])
	var body bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(object, &body); err != nil {
		t.Fatal(err)
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_, _ = w.Write(body.Bytes()) // the client has gone
	}
}

// 1,000 nodes of eight whole GPUs, without the time that the API server takes.
func BenchmarkLs(b *testing.B) {
	s := fastServer(b, fleet(b, 1000))
	for b.Loop() {
		out, _, err := s.run(b, "ls")
		if err != nil {
			b.Fatal(err)
		}
		if lines := bytes.Count([]byte(out), []byte("\n")); lines != 8001 {
			b.Fatalf("got %d lines, want a header and 8000 GPUs", lines)
		}
	}
}

// 5,000 nodes are listed, and asked as one: they have equal devices in equal use.
func TestManyNodes(t *testing.T) {
	const nodes = 5000
	of := fleet(t, nodes)
	nine := claim("nine", "", "")
	nine.Status, nine.ResourceVersion = resourceapi.ResourceClaimStatus{}, "1"
	nine.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 9}}}
	of.Claims = append(of.Claims, nine)
	s := fastServer(t, of)
	w := waiting(t)
	s.Classes = w.Classes
	for path, answer := range w.answers {
		s.answers[path] = answer
	}
	s.answers["/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims/nine"] = encoded(t, nine)
	out, _, err := s.run(t, "ls", "--no-headers")
	if got := strings.Count(out, "\n"); got != 8*nodes || err != nil {
		t.Errorf("got %d lines, %v, want %d GPUs", got, err, 8*nodes)
	}
	out, _, err = s.run(t, "why", "claim/nine")
	if want := "request gpu: ask for 4 devices instead of 9\n"; !strings.Contains(out, want) || err != nil {
		t.Errorf("got %v\n%s\nwant %s", err, out, want)
	}
	out, _, err = s.run(t, "why", "claim/nine", "-o", "json")
	if want := "\"groups\": 1\n"; !strings.Contains(out, want) || err != nil {
		t.Errorf("got %v\n%s\nwant %s", err, out, want)
	}
}

// pageChanges are as many changes as in an hour with one a second.
const pageChanges = 3600

// 1,000 nodes of eight GPUs on the page: until they are shown, a change, scrolling, and what the tab keeps of an hour
// of changes that are sent fast. make bench has rows of it.
func BenchmarkPage(b *testing.B) {
	s := fleet(b, 1000)
	page := serve(b, s)
	tab := newBrowser(b)
	for b.Loop() {
		measurePage(b, tab, page, s)
	}
}

func measurePage(b *testing.B, tab *browser, page *pageServer, s *cluster.Snapshot) {
	report := func(what, expression string) float64 {
		b.Helper()
		value, err := strconv.ParseFloat(tab.eval(b, expression), 64)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(value, what)
		return value
	}
	memory := func(what string) (elements float64) {
		tab.call(b, "HeapProfiler.collectGarbage", map[string]any{})
		used := tab.call(b, "Runtime.getHeapUsage", map[string]any{})["usedSize"].(float64)
		b.ReportMetric(used/(1<<20), "MiB-"+what)
		return report("elements-"+what, "document.querySelectorAll('*').length")
	}
	tab.look(b, 1280, "light")
	tab.call(b, "Page.navigate", map[string]any{"url": page.url()})
	tab.wait(b, "document.documentElement?.dataset.drawn", `"1000"`)
	report("ms-first", "performance.getEntriesByName('first card')[0].startTime")
	report("ms-all", "performance.getEntriesByName('all cards')[0].startTime")
	elements := memory("before")

	tab.eval(b, `(window.longest = 0, new PerformanceObserver((list) => {
		for (const e of list.getEntries()) window.longest = Math.max(window.longest, e.duration);
	}).observe({type: 'longtask'}), true)`)
	tab.call(b, "Input.synthesizeScrollGesture", map[string]any{"x": 600, "y": 600, "yDistance": -20000,
		"speed": 8000})
	report("ms-longest", "window.longest")

	// A change gives a GPU of a node to a claim, or takes it away.
	before, next := page.board.current(), *s
	for _, n := range s.Nodes {
		next.Claims = append(slices.Clip(next.Claims), claim(n.Name+"-late", n.Name, s.Slices[0].Spec.Devices[1].Name))
	}
	const free = "document.querySelector('[data-state=free] b').textContent"
	begin := time.Now()
	if err := page.board.update(&next); err != nil {
		b.Fatal(err)
	}
	tab.wait(b, free, `"3000"`)
	b.ReportMetric(float64(time.Since(begin).Milliseconds()), "ms-changed")
	after := page.board.current()
	now := maps.Clone(after.nodes)
	begin = time.Now()
	for i := range pageChanges {
		name, from := s.Nodes[i%1000].Name, before
		if i/1000%2 == 1 {
			from = after
		}
		now[name] = from.nodes[name]
		page.board.publish(&boardState{nodes: maps.Clone(now), pending: []pendingObject{}, unread: []string{}})
		time.Sleep(time.Millisecond)
		if i%100 == 99 { // the page has drawn them, so that few are sent together
			gone := i%1000 + 1
			want := 3000 + gone
			if i/1000%2 == 1 {
				want = 4000 - gone
			}
			tab.wait(b, free, fmt.Sprintf("%q", fmt.Sprint(want)))
		}
	}
	b.ReportMetric(time.Since(begin).Seconds(), "s-changes")
	page.board.publish(&boardState{nodes: before.nodes, pending: []pendingObject{}, unread: []string{}})
	tab.wait(b, free, `"4000"`)
	if now := memory("after"); now != elements {
		b.Fatalf("got %v elements after the changes, %v before: the page keeps what is gone", now, elements)
	}
}
