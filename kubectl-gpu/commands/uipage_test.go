// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// serve starts the page of a snapshot.
func serve(t testing.TB, s *cluster.Snapshot) *pageServer {
	t.Helper()
	page, _ := serveUntil(t, s, fake.NewClientset())
	return page
}

// serveUntil starts the page of a snapshot, with the use that the API server knows, until the test ends or calls stop.
func serveUntil(t testing.TB, s *cluster.Snapshot, api kubernetes.Interface) (page *pageServer, stop func()) {
	t.Helper()
	b := newBoard(filter{}, "ml")
	if err := b.update(s); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(nil)
	of := newReasons(func(context.Context) *cluster.Snapshot { return s })
	page = newPageServer(b, of, &usage{client: api, plugins: "app.kubernetes.io/component=kubelet-plugin"},
		server.Listener.Addr().String(), "secret")
	server.Config.Handler = page
	server.Start()
	stop = func() {
		server.CloseClientConnections()
		server.Close()
	}
	t.Cleanup(stop)
	return page, stop
}

// pageSnapshot has shares, partitions, a sick GPU, one that is kept, a pending claim, and a resource that was not read.
func pageSnapshot(t testing.TB) *cluster.Snapshot {
	t.Helper()
	s := newCluster(t)
	s.device(t, "a", "gpu-af-00-0").Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79",
		Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	s.device(t, "b", "gpu-df-00-0").Taints = []resourceapi.DeviceTaint{{Key: cluster.ReservedTaint, Value: "vision",
		Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	s.device(t, "b", "gpu-43-00-0").Taints = []resourceapi.DeviceTaint{
		{Key: "gpu.nvidia.com/xid", Effect: resourceapi.DeviceTaintEffectNone},
		{Key: "example.com/unhealthy", Effect: resourceapi.DeviceTaintEffectNone}}
	s.Claims[1].Namespace = "<web>" // no namespace can have this name; the page must not take text for HTML
	waiting := claim("waiting", "", "")
	waiting.Status = resourceapi.ResourceClaimStatus{}
	waiting.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu.nvidia.com"}}}
	s.Claims = append(s.Claims, waiting)
	late := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "late",
		CreationTimestamp: metav1.NewTime(time.Now())},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("none")}},
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2"),
					"cpu": resource.MustParse("1")}}}}}}
	running := late.DeepCopy()
	running.Name, running.Spec.NodeName, running.Status.Phase = "running", "a", corev1.PodRunning
	return &cluster.Snapshot{Nodes: s.Nodes, Slices: s.Slices, Claims: s.Claims, Pods: []*corev1.Pod{late, running},
		Unread: map[string]error{}}
}

// TestPage uses the page in a browser: what it shows, filters, the keyboard, and changes.
func TestPage(t *testing.T) {
	b := newBrowser(t)
	snap := pageSnapshot(t)
	page := serve(t, snap)
	b.call(t, "Page.navigate", map[string]any{"url": page.url()})
	b.wait(t, "document.documentElement?.dataset.drawn", `"2"`)
	const cards = "[...document.querySelectorAll('.node:not([hidden]) .gpu')]"
	same := func(what, expression, want string) {
		t.Helper()
		if got := b.eval(t, expression); got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	same("the address has no token", "location.search", `""`)
	same("summary", "document.getElementById('summary').textContent", `"10 GPUs, 5 free, 1 kept, 1 sick, 100.4Gi of 667.2Gi held, on 2 nodes"`)
	same("connection", "document.getElementById('connection').textContent", `"live"`)
	same("nodes", "[...document.querySelectorAll('.node')].map((n) => n.getAttribute('aria-label')).join()",
		`"Node a,Node b"`)
	same("name of a GPU", cards+"[0].title", `"gpu-3b-00-0 on a, Tesla T4; `+
		`memory 11Gi of 15Gi held; by \u003cweb\u003e/serve 6Gi, ml/train 5Gi"`)
	same("a tainted GPU", cards+"[1].className + ' ' + "+cards+"[1].innerText.trim()",
		`"gpu tainted #1 gpu-af-00-0\nTesla T4\n0 of 15Gi\nXID 79: no new claims"`)
	same("taints without values", cards+".find((c) => c.gpu.name === 'gpu-43-00-0').innerText.trim().split('\\n')"+
		".slice(-2).join()", `"XID,unhealthy"`)
	same("a GPU that is kept", cards+"[9].className + ' ' + "+cards+"[9].innerText.trim().split('\\n').pop()",
		`"gpu kept for vision"`)
	same("what a claim holds is not cut",
		cards+"[0].innerText.includes('6Gi') && "+cards+"[0].innerText.includes('5Gi')", "true")
	same("sums of a node", "document.querySelector('.node h2').innerText.replace(/\\s+/g, ' ')",
		`"a 2 GPUs, 0 free, 1 sick, 11Gi of 30Gi held"`)
	same("segments of a GPU", cards+"[0].querySelectorAll('i').length", "2")
	same("a segment is as wide as its part", `(() => { const [i] = document.querySelectorAll('.memory i');
		return Math.round(100 * i.getBoundingClientRect().width / i.parentElement.getBoundingClientRect().width) })()`, "40")
	same("two namespaces, two colours", `new Set([...document.querySelector('.memory').children]
		.map((i) => getComputedStyle(i).backgroundColor)).size`, "2")
	for _, row := range []struct{ width, columns int }{{1400, 8}, {1920, 8}, {500, 3}, {390, 2}} {
		b.call(t, "Emulation.setDeviceMetricsOverride", map[string]any{"width": row.width, "height": 900,
			"deviceScaleFactor": 1, "mobile": false})
		same(fmt.Sprintf("GPUs in a row at %d pixels", row.width), "(() => { const c = "+cards+".slice(2); "+
			"return c.filter((e) => e.offsetTop === c[0].offsetTop).length })()", fmt.Sprint(row.columns))
		same(fmt.Sprintf("nothing is wider than the page at %d pixels", row.width),
			"document.documentElement.scrollWidth <= window.innerWidth", "true")
		b.screenshot(t, fmt.Sprint("width-", row.width))
	}
	b.call(t, "Emulation.clearDeviceMetricsOverride", map[string]any{})
	same("legend", "document.getElementById('legend').innerText", `"\u003cweb\u003e\nml"`)
	same("the numbers of the header", "document.getElementById('tiles').innerText.replace(/\\s+/g, ' ')",
		`"10 GPUs 5 free 1 sick 2 waiting"`)
	same("nobody has asked why", asked, "0")
	b.screenshot(t, "page")

	// The keyboard: Tab reaches one card, arrows move, Enter opens, Escape closes.
	same("one card is reached by Tab", "document.querySelectorAll('.gpu[tabindex=\"0\"]').length", "1")
	b.eval(t, "document.querySelector('.gpu').focus()")
	b.press(t, "ArrowDown", 40)
	b.press(t, "ArrowRight", 39)
	same("the focus has moved", "document.activeElement.gpu.node + '/' + document.activeElement.gpu.name",
		`"b/gpu-43-00-0"`)
	b.eval(t, "document.activeElement.click()")
	same("the details are open", "document.getElementById('details').open", "true")
	if got := b.eval(t, "document.querySelector('#details tbody').innerText"); !strings.Contains(got,
		`ml/small\tgpu-43-00-0-mig-1g10gb-0\t9.8Gi\t12%\tpod-small`) {
		t.Errorf("details: got %s", got)
	}
	same("the address has the GPU", "location.hash", `"#gpu=b%2Fgpu-43-00-0"`)
	b.screenshot(t, "details")
	b.press(t, "Escape", 27)
	b.wait(t, "document.getElementById('details').open", "false")
	b.wait(t, "location.hash", `""`)
	b.eval(t, cards+"[1].click()")
	if got := b.eval(t, "document.getElementById('remedies').innerText"); !strings.Contains(got, "What to do: ") {
		t.Errorf("a sick GPU that nobody has: got %s, want what to do", got)
	}
	same("commands", "document.querySelector('#commands code').textContent", `"kubectl gpu describe a/gpu-af-00-0"`)
	b.press(t, "Escape", 27)
	b.wait(t, "document.getElementById('details').open", "false")

	// Workloads.
	b.eval(t, "document.querySelector('[data-state=waiting]').click()")
	const workload = "[...document.querySelectorAll('#workloads tbody tr')]"
	same("what waits", workload+".map((r) => r.cells[0].innerText + ' ' + r.cells[1].firstChild.textContent + ' ' + "+
		"r.cells[2].innerText).join()", `"waiting claim ml/waiting gpu.nvidia.com,`+
		`waiting pod ml/late claim none, which is not there, nvidia.com/gpu: 2"`)
	b.eval(t, "(document.getElementById('state').value = '', "+
		"document.getElementById('state').dispatchEvent(new Event('input', {bubbles: true})))")
	b.wait(t, workload+".length", "6")
	same("what runs", workload+".slice(2).map((r) => [0, 1, 2, 3].map((i) => r.cells[i].innerText.trim()).join('|'))"+
		".join()",
		`"running|\u003cweb\u003e/serve: pod-serve|6Gi|a/gpu-3b-00-0,running|ml/small: pod-small|1g.10gb|b/gpu-43-00-0,`+
			`running|ml/train: pod-train|5Gi|a/gpu-3b-00-0,running|ml/whole: pod-whole|all of it|b/gpu-1b-00-0"`)
	same("the GPUs are hidden", "document.getElementById('gpus').checkVisibility()", "false")
	same("the address", "location.hash", `"#view=workloads"`)
	b.screenshot(t, "workloads")
	b.eval(t, workload+"[3].querySelector('.link').click()")
	same("its GPU", "document.getElementById('details-title').textContent", `"gpu-43-00-0 on b"`)
	b.press(t, "Escape", 27)
	b.wait(t, "document.getElementById('details').open", "false")
	b.eval(t, "document.querySelector('[data-state=\"\"]').click()")

	// Filters.
	filterBy := func(id, value string) {
		b.eval(t, `(() => { const e = document.getElementById('`+id+`'); e.value = '`+value+`';
			e.dispatchEvent(new Event('input', {bubbles: true})) })()`)
	}
	filterBy("model", "Tesla T4")
	b.wait(t, cards+".length", "2")
	filterBy("model", "")
	filterBy("namespace", "<web>")
	b.wait(t, cards+".length", "1")
	filterBy("namespace", "")
	filterBy("node", "b")
	b.wait(t, cards+".length", "8")
	filterBy("node", "")
	b.wait(t, cards+".length", "10")
	for state, want := range map[string]string{"free": "5", "held": "3", "kept": "1", "sick": "1"} {
		filterBy("state", state)
		b.wait(t, cards+".length", want)
	}
	filterBy("state", "")
	b.wait(t, cards+".length", "10")

	filterBy("model", "Tesla T4")
	same("the sums are of what is shown", "document.getElementById('summary').textContent",
		`"2 GPUs, 0 free, 1 sick, 11Gi of 30Gi held (of 10), on 1 node"`)
	filterBy("node", "none")
	b.wait(t, "document.getElementById('empty').innerText", `"No GPU matches the filters: Clear shows all."`)
	b.eval(t, "document.getElementById('clear').click()")
	b.wait(t, cards+".length", "10")
	filterBy("order", "free")
	b.wait(t, "document.querySelector('.node').getAttribute('aria-label')", `"Node b"`)
	filterBy("order", "")
	filterBy("view", "rows")
	b.wait(t, "document.getElementById('nodes').className", `"rows"`)
	b.screenshot(t, "rows")
	filterBy("view", "")

	// A change: a claim ends, another node and a GPU over the network come, and a resource cannot be read any more.
	next := *snap
	next.Claims = snap.Claims[1:]
	next.Slices = append(append(published(t, "c", "t4-x2"), overNetwork()), snap.Slices...)
	next.Unread = map[string]error{cluster.Nodes: errors.New("no answer")}
	if err := page.board.update(&next); err != nil {
		t.Fatal(err)
	}
	b.wait(t, cards+".length", "13")
	same("the claim has ended", cards+"[0].querySelectorAll('i').length", "1")
	same("a GPU over the network", cards+"[12].innerText.trim()",
		`"server-0\nH100\n0 of 80Gi\non node b, over the network"`)
	same("its name", cards+"[12].title",
		`"server-0 on node b, over the network, NVIDIA H100; memory 0 of 80Gi held"`)
	const summary = "document.getElementById('summary').textContent"
	same("the summary counts it once, and its pool as no node", summary,
		`"12 GPUs, 7 free, 1 kept, 1 sick, 95.4Gi of 697.2Gi held, on 3 nodes; 1 over the network"`)
	same("nodes and a pool", "[...document.querySelectorAll('.node')].map((n) => n.getAttribute('aria-label')).join()",
		`"Node a,Node b,Node c,Pool remote"`)
	filterBy("node", "b")
	b.wait(t, cards+".length", "9")
	same("the summary of a node whose GPU is served", summary,
		`"8 GPUs, 5 free, 1 kept, 89.4Gi of 637.2Gi held (of 12), on 1 node; 1 over the network"`)
	filterBy("node", "")
	same("what is not read", "document.getElementById('unread').innerText.includes('read nodes: no answer')", "true")
	b.call(t, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]any{{
		"name": "prefers-color-scheme", "value": "dark"}}})
	same("a dark page", "getComputedStyle(document.body).backgroundColor", `"rgb(20, 23, 26)"`)
	b.screenshot(t, "dark")
}

// TestPageKeepsFocus: changes of the cluster take neither the focus from a card nor scroll the page.
func TestPageKeepsFocus(t *testing.T) {
	b := newBrowser(t)
	s := pageSnapshot(t)
	page := serve(t, s)
	b.call(t, "Page.navigate", map[string]any{"url": page.url()})
	b.wait(t, "document.documentElement?.dataset.drawn", `"2"`)
	const focused, segments = "document.activeElement.gpu?.name", "document.querySelectorAll('.memory i').length"
	b.eval(t, "document.querySelector('.gpu').focus()")
	b.press(t, "ArrowDown", 40)
	b.press(t, "ArrowRight", 39)
	require := func(when string) {
		t.Helper()
		if got := b.eval(t, focused); got != `"gpu-43-00-0"` {
			t.Errorf("%s: got focus on %s, want gpu-43-00-0", when, got)
		}
	}
	require("at first")
	update := func() {
		t.Helper()
		if err := page.board.update(s); err != nil {
			t.Fatal(err)
		}
	}

	s.Nodes, s.Slices = append(s.Nodes, node("c")), append(published(t, "c", "t4-x2"), s.Slices...)
	update()
	b.wait(t, "document.documentElement.dataset.drawn", `"3"`)
	require("after a node has come")

	b.eval(t, "(document.body.style.minHeight = '5000px', window.scrollTo(0, 4000))")
	s.Claims = append(s.Claims, claim("late", "b", "gpu-52-00-0"))
	update()
	b.wait(t, segments, "5")
	require("after the node has changed")
	if got := b.eval(t, "window.scrollY"); got != "4000" {
		t.Errorf("got the page scrolled to %s, want 4000", got)
	}

	b.eval(t, "document.activeElement.click()")
	s.Claims = s.Claims[:len(s.Claims)-1]
	update()
	b.wait(t, segments, "4")
	b.press(t, "Escape", 27)
	b.wait(t, "document.getElementById('details').open", "false")
	b.wait(t, focused, `"gpu-43-00-0"`)

	for _, name := range []string{"gpu-9d-00-0", "gpu-c3-00-0"} {
		for _, slice := range s.Slices {
			for i, d := range slice.Spec.Devices {
				if d.Name == name {
					slice.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/gpu-lost",
						Effect: resourceapi.DeviceTaintEffectNoSchedule}}
				}
			}
		}
	}
	update()
	b.wait(t, "[...document.querySelectorAll('.node')].map((n) => n.name).join()", `"b,a,c"`) // sick first
	require("after the node has become the first")
}

// serveUse starts the page of a snapshot, with the metrics of the plugin on node a, which does not answer while down is
// set.
func serveUse(t *testing.T, s *cluster.Snapshot) (page *pageServer, stop func(), down *atomic.Bool) {
	t.Helper()
	api := newCluster(t)
	down = &atomic.Bool{}
	metrics := strings.ReplaceAll(metricsOfA(), `"train"`, `"pod-train"`)
	api.Pods = append(api.Pods, pluginPod("a"))
	api.answers = map[string]http.HandlerFunc{proxy("a"): func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		plain(metrics)(w, r)
	}}
	config, err := clientcmd.BuildConfigFromFlags("", api.kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	page, stop = serveUntil(t, s, kubernetes.NewForConfigOrDie(config))
	return page, stop, down
}

// TestPageWorkloads: what has started on a node and does not run has a row; rows stay the same ones; and use is asked
// for of what runs, however much waits.
func TestPageWorkloads(t *testing.T) {
	s := pageSnapshot(t)
	for i := range 60 {
		waiting := claim(fmt.Sprint("pending-", i), "", "")
		waiting.Status = resourceapi.ResourceClaimStatus{}
		s.Claims = append(s.Claims, waiting)
	}
	stuck := s.Pods[0].DeepCopy()
	stuck.Name, stuck.Spec.NodeName = "stuck", "a"
	s.Pods = append(s.Pods, stuck)
	page, _, _ := serveUse(t, s)
	b := newBrowser(t)
	b.call(t, "Page.navigate", map[string]any{"url": page.url() + "#view=workloads"})
	const row = "[...document.querySelectorAll('#workloads tbody tr')].find((r) => r.innerText.includes('%s'))"
	train, starting := fmt.Sprintf(row, "ml/train"), fmt.Sprintf(row, "ml/stuck")
	b.wait(t, train+"?.cells[4].innerText", `"50% busy, 1Gi of 5Gi"`)
	b.wait(t, starting+".cells[0].innerText", `"starting"`)
	b.wait(t, "("+starting+".scrollIntoView(), "+starting+
		".querySelector('.reason').innerText.startsWith('pod stuck '))", "true")
	b.call(t, "Emulation.setDeviceMetricsOverride", map[string]any{"width": 390, "height": 900, "deviceScaleFactor": 1,
		"mobile": false})
	b.eval(t, train+".querySelector('.link').click()")
	for what, element := range map[string]string{"the page": "document.documentElement",
		"the dialog": "document.getElementById('details')"} {
		if got := b.eval(t, element+".scrollWidth <= "+element+".clientWidth"); got != "true" {
			t.Errorf("%s is wider than 390 pixels", what)
		}
	}
	b.press(t, "Escape", 27)
	b.wait(t, "document.getElementById('details').open", "false")
	b.call(t, "Emulation.clearDeviceMetricsOverride", map[string]any{})
	b.eval(t, "(window.kept = "+train+", "+train+".querySelector('.link').focus())")
	next := *s
	next.Claims = s.Claims[:len(s.Claims)-1]
	if err := page.board.update(&next); err != nil {
		t.Fatal(err)
	}
	b.wait(t, "document.querySelector('[data-state=waiting] b').innerText", `"61"`)
	if got := b.eval(t, "window.kept === "+train+" && window.kept.isConnected"); got != "true" {
		t.Errorf("the row of what runs is another one: got %s", got)
	}
}

// TestPageUse: the page shows what containers use, follows the GPU that is open, and says when it is cut off.
func TestPageUse(t *testing.T) {
	s := pageSnapshot(t)
	page, stop, down := serveUse(t, s)
	b := newBrowser(t)
	b.call(t, "Page.navigate", map[string]any{"url": page.url() + "#gpu=a/gpu-3b-00-0"})
	b.wait(t, "document.querySelector('#use p')?.innerText",
		`"ml/pod-train, container main: 50% busy, 1Gi of 5Gi"`)
	next := *s
	next.Claims = s.Claims[1:]
	if err := page.board.update(&next); err != nil {
		t.Fatal(err)
	}
	b.wait(t, "document.querySelectorAll('#details tbody tr').length", "1")
	b.press(t, "Escape", 27)
	b.wait(t, "location.hash", `""`) // the end of the dialog writes the address
	b.eval(t, "location.hash = '#gpu=b/gpu-43-00-0'")
	b.wait(t, "document.getElementById('details').open && document.getElementById('details-title').innerText",
		`"gpu-43-00-0 on b"`)
	b.press(t, "Escape", 27)
	b.wait(t, "location.hash", `""`)
	b.eval(t, "document.querySelector('.gpu').click()") // asks again
	b.wait(t, "document.querySelector('#use figcaption').innerText.replace(/.*min/, '')",
		`", up to 50%; memory (dashed) up to 1Gi"`)
	b.wait(t, "[...document.querySelectorAll('#use polyline')].map((l) => l.getAttribute('points').split(' ').pop())"+
		".join(' ')", `"100,93.33333333333333 100,50"`)
	b.screenshot(t, "use")
	b.press(t, "Escape", 27)
	down.Store(true)
	b.eval(t, "document.querySelector('.gpu').click()")
	b.wait(t, "document.querySelector('#use .reason')?.innerText.startsWith('node a: metrics of the plugin ')", "true")
	same := b.eval(t, "document.body.className")
	stop()
	b.wait(t, "document.body.className", `"stale"`)
	if text := b.eval(t, "document.getElementById('connection').innerText"); same != `""` ||
		!strings.Contains(text, "not connected since ") {
		t.Errorf("cut off: got %s, and before %s", text, same)
	}
}

// TestPageUnread: what is missing is read aloud once, and what is not known is not shown as known.
func TestPageUnread(t *testing.T) {
	b := newBrowser(t)
	s := pageSnapshot(t)
	s.Unread = map[string]error{cluster.Claims: errors.New("no answer"), cluster.Nodes: errors.New("no answer")}
	s.Claims, s.Nodes = nil, nil
	page := serve(t, s)
	b.call(t, "Page.navigate", map[string]any{"url": page.url()})
	b.wait(t, "document.documentElement?.dataset.drawn", `"2"`)
	if got, want := b.eval(t, "document.getElementById('summary').textContent"),
		`"10 GPUs, ? free, 1 kept, 1 sick, ? of 667.2Gi held, on 2 nodes"`; got != want {
		t.Errorf("got the summary %s, want %s", got, want)
	}
	b.eval(t, "document.querySelector('.gpu').click()")
	if got := b.eval(t, "document.getElementById('details').innerText"); strings.Contains(got, "takes pods") {
		t.Errorf("got the details %s of a node that is not known", got)
	}
	b.eval(t, "window.known = document.querySelector('#unread li')")
	s.Slices = append(published(t, "c", "t4-x2"), s.Slices...)
	if err := page.board.update(s); err != nil {
		t.Fatal(err)
	}
	b.wait(t, "document.documentElement.dataset.drawn", `"3"`)
	if got := b.eval(t, "window.known === document.querySelector('#unread li')"); got != "true" {
		t.Error("the same alert came again")
	}
}

// asked is how often the page has asked why a claim waits.
const asked = "performance.getEntriesByType('resource').filter((e) => e.name.includes('/why?')).length"

// TestPageSaysWhyClaimsWait: the page asks about the claims that can be seen, and no others.
func TestPageSaysWhyClaimsWait(t *testing.T) {
	b := newBrowser(t)
	s := pageSnapshot(t)
	class := &resourceapi.DeviceClass{}
	class.Name = "gpu.nvidia.com"
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: "device.attributes['gpu.nvidia.com'].type == 'gpu'"}}}
	s.Classes = []*resourceapi.DeviceClass{class}
	old := metav1.NewTime(time.Now().Add(-time.Hour))
	const claims = 900
	for i := range claims {
		c := claim(fmt.Sprintf("pending-%04d", i), "", "")
		c.CreationTimestamp, c.Status = old, resourceapi.ResourceClaimStatus{}
		c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class.Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 9}}}
		s.Claims = append(s.Claims, c)
	}
	page := serve(t, s)
	b.call(t, "Page.navigate", map[string]any{"url": page.url()})
	b.wait(t, "document.documentElement?.dataset.drawn", `"2"`)
	const reason = "document.querySelectorAll('#workloads .reason')"
	if got := b.eval(t, asked); got != "0" {
		t.Errorf("before the list is shown: got %s questions, want none", got)
	}
	b.eval(t, "document.querySelector('[data-state=waiting]').click()")
	b.wait(t, reason+"[1].textContent.includes('waits: request gpu of claim pending-000')", "true")
	if got := b.eval(t, reason+"[1].textContent"); !strings.Contains(got, `\nsmallest change: `) {
		t.Errorf("got the reason %s, want the cause and the smallest change", got)
	}
	b.screenshot(t, "why")
	last := fmt.Sprintf("%s[%d]", reason, claims)
	if got := b.eval(t, last+".textContent"); got != `"…"` {
		t.Errorf("a claim that cannot be seen: got %s, want no answer", got)
	}
	// The answers of those above move it.
	b.wait(t, "("+last+".scrollIntoView(), "+last+".textContent.includes('waits: '))", "true")
	if count, _ := strconv.Atoi(b.eval(t, asked)); count < 2 || count > claims/10 {
		t.Errorf("got %d questions for %d claims, want few", count, claims)
	}

	// A claim ends, and the others keep their answers.
	next := *s
	next.Claims = s.Claims[:len(s.Claims)-1]
	b.eval(t, "window.kept = document.querySelector('#workloads tbody tr')")
	if err := page.board.update(&next); err != nil {
		t.Fatal(err)
	}
	b.wait(t, "document.querySelector('[data-state=waiting] b').textContent", fmt.Sprintf("%q", fmt.Sprint(claims+1)))
	if got := b.eval(t, "window.kept === document.querySelector('#workloads tbody tr')"); got != "true" {
		t.Errorf("the rows of the other claims are the same: got %s", got)
	}
}

// TestPageOfFleet draws 8,000 GPUs. It logs how long that takes.
func TestPageOfFleet(t *testing.T) {
	b := newBrowser(t)
	page := serve(t, fleet(t, 1000))
	b.call(t, "Page.navigate", map[string]any{"url": page.url()})
	b.wait(t, "document.documentElement?.dataset.drawn", `"1000"`)
	if got := b.eval(t, "document.querySelectorAll('.gpu').length"); got != "8000" {
		t.Errorf("got %s cards, want 8000", got)
	}
	t.Logf("first contentful paint after %s ms, first card after %s ms, all cards after %s ms",
		b.eval(t, "Math.round(performance.getEntriesByName('first-contentful-paint')[0].startTime)"),
		b.eval(t, "Math.round(performance.getEntriesByName('first card')[0].startTime)"),
		b.eval(t, "Math.round(performance.getEntriesByName('all cards')[0].startTime)"))
	b.screenshot(t, "fleet")
}
