// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/convert"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/internal/controller/explain"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/quota"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// loadVariable makes the test of the memory the process that is loaded.
const loadVariable = "GPU_DRA_TEST_LOAD"

// Everything that users can ask of the controller at the same time fits into the memory limit of the chart: the largest
// objects that webhooks take, from more API calls than are served at once; claims at the bounds of what is explained;
// and what replicas remember of claims. The load runs in a process of its own, whose most memory counts.
func TestMemory(t *testing.T) {
	if os.Getenv(loadVariable) != "" {
		load(t)
		return
	}
	text, err := os.ReadFile("../../deployments/helm/gpu-dra-driver/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Controller struct {
			Resources struct{ Limits map[string]resource.Quantity }
		}
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	limit, ok := values.Controller.Resources.Limits["memory"]
	if !ok {
		t.Fatal("the chart sets no memory limit for the controller")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMemory$", "-test.v")
	cmd.Env = append(os.Environ(), loadVariable+"=1", "GOGC=50",
		fmt.Sprintf("GOMEMLIMIT=%d", limit.Value()/10*9)) // as cmd/dra-controller does
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(out)
	if found == nil {
		t.Fatalf("no VmHWM in\n%s", out)
	}
	kilobytes, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("at most %d MiB of %d", kilobytes>>10, limit.Value()>>20)
	if kilobytes<<10 > limit.Value() {
		t.Errorf("got %d MiB, want at most %s", kilobytes>>10, limit.String())
	}
}

// load loads this process, and prints its most memory.
func load(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100"})
	clustertest.Fleet(t, v, 100, 10, gpu.SharingMode{})
	expander := strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}
	seen := explain.NewClaims(expander, feature.NewGuard())
	limits := newLimiter()
	events := fake.NewClientBuilder().WithScheme(scheme.Scheme).Build()
	objects := map[string][]string{"Pod": {manyContainers()}, "ResourceClaim": largeClaims()}
	var all sync.WaitGroup
	for _, h := range []struct {
		kind    string
		handler webhook.Handler
	}{{"ResourceClaim", admission.Validator{Checker: admission.Checker{View: v}, Expander: expander}},
		{"ResourceClaim", expander}, {"ResourceClaim", admission.OptionalFields{}},
		{"ResourceClaim", quota.NewWebhook(&feature.Controller{View: v, Direct: events, Guard: feature.NewGuard(),
			Known: func() error { return nil }})},
		{"Pod", convert.NewWebhook(convert.Names(),
			clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}), events, events)}} {
		kind, limits := h.kind, limits
		if _, waits := h.handler.(*quota.Webhook); waits {
			limits = newLimiter() // others do not wait for it
		}
		server := limits.handler(&webhook.Webhook{Handler: h.handler})
		for _, object := range objects[kind] {
			calls := smallRequests + 6
			if len(object) > smallBody {
				calls = 2 * largeRequests
			}
			for i := range calls {
				all.Go(func() {
					review(t, server, kind, strings.ReplaceAll(object, "NUMBER", strconv.Itoa(i)))
				})
			}
		}
	}
	all.Go(func() {
		for i := range 300 {
			claim := oldClaim(t, "ns", fmt.Sprint("seen", i), largestSelectors("strongest.gpu.nvidia.com", 30, i))
			claim.CreationTimestamp.Time = time.Now()
			seen.See(claim)
		}
	})
	all.Go(func() { explainLargest(t, events) })
	all.Wait()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\n%s\n", regexp.MustCompile(`VmHWM:.*`).Find(status))
}

// reviews counts them: one namespace has few places.
var reviews atomic.Int64

// review sends an object to a webhook as the API server does, which has the object meanwhile.
func review(t *testing.T, server http.Handler, kind, object string) {
	head := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":`+
		`"CREATE","namespace":"ns%d","kind":{"kind":%q},"object":`, reviews.Add(1)%8, kind)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/?timeout=1s",
		io.MultiReader(strings.NewReader(head), strings.NewReader(object), strings.NewReader("}}")))
	r.ContentLength = int64(len(head) + len(object) + 2)
	r.Header.Set("Content-Type", "application/json")
	server.ServeHTTP(httptest.NewRecorder(), r)
}

// manyContainers is a pod with as many containers as a request may have.
func manyContainers() string {
	return `{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 200_000) + `"}},"spec":{"containers":[` +
		strings.TrimSuffix(strings.Repeat(`{"resources":{"limits":{"tencent.com/vcuda-core":5}}},`, 24_000), ",") + `]}}`
}

// largeClaims are claims that need much memory or time: many objects, long selectors, large counts.
func largeClaims() []string {
	selector := `{"cel":{"expression":"` + strings.Repeat(`'NUMBER'!='x'&&`, 120) + `true"}}`
	selectors := `"selectors":[` + strings.TrimSuffix(strings.Repeat(selector+",", 25), ",") + `]`
	return []string{
		`{"spec":{"devices":{"requests":[{"firstAvailable":[` + strings.Repeat("{},", 99_000) + `{}]}]}}}`,
		`{"spec":{"devices":{"requests":[{"name":"a","exactly":{"deviceClassName":"strongest.gpu.nvidia.com",` + selectors +
			`}}]}}}`,
		`{"spec":{"devices":{"requests":[{"name":"a","firstAvailable":[{"name":"b","deviceClassName":"gpu.nvidia.com"},` +
			`{"name":"c","deviceClassName":"gpu.nvidia.com","count":4611686018427387904}]}],"config":[{"opaque":{"driver":` +
			`"gpu.nvidia.com","parameters":{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":` +
			`{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi"}}}}}}]}}}`,
		`{"spec":{"x":"` + strings.Repeat("x", 3<<20) + `"}}`,
	}
}

// largestSelectors is YAML of a claim with that many selectors of 2 KiB.
func largestSelectors(class string, selectors, seed int) string {
	var all []string
	for k := range selectors {
		var clauses []string
		for n := range 110 {
			clauses = append(clauses, fmt.Sprintf("'%d'!='x'", (seed*selectors+k)*1000+n))
		}
		all = append(all, fmt.Sprintf("{cel: {expression: %q}}", strings.Join(clauses, " && ")))
	}
	return "requests: [{name: gpu, exactly: {deviceClassName: " + class + ", count: 9, selectors: [" +
		strings.Join(all, ", ") + "]}}]"
}

// oldClaim returns a claim that is two minutes old.
func oldClaim(t *testing.T, namespace, name, devices string) *resourceapi.ResourceClaim {
	t.Helper()
	claim := clustertest.Claim(t, devices)
	claim.Namespace, claim.Name, claim.UID = namespace, name, types.UID(namespace+"-"+name)
	claim.CreationTimestamp = metav1.NewTime(time.Now().Add(-2 * time.Minute))
	return claim
}

// explainLargest makes a round of the leader with claims of as many expressions as are explained.
func explainLargest(t *testing.T, events client.Client) {
	v, node := clustertest.New(t), clustertest.SimNode{Name: "large", Profile: "dgx-h100"}
	objects := []runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}}
	for _, class := range clustertest.Classes(t) {
		objects = append(objects, class)
	}
	for _, s := range clustertest.Slices(t, node) {
		objects = append(objects, s)
	}
	var pods []*corev1.Pod
	for i := range 2 {
		claim := oldClaim(t, fmt.Sprint("ns", i), "large", largestSelectors("mig.nvidia.com", 30, i))
		uses := corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}
		pod := &corev1.Pod{ObjectMeta: claim.ObjectMeta, Spec: corev1.PodSpec{
			Containers:     []corev1.Container{{Name: "main", Resources: uses}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim.Name}}},
			Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}}}}
		objects, pods = append(objects, claim), append(pods, waiting.Slim(pod))
		v.SetClaim(cluster.SlimClaim(claim))
	}
	u := explain.NewWaiting(&feature.Controller{Direct: events, View: v, Guard: feature.NewGuard()},
		kubefake.NewClientset(objects...), time.Minute)
	for range 2 { // a round ends early
		if err := u.Report(t.Context(), pods, time.Now()); err != nil {
			t.Error(err)
		}
	}
}
