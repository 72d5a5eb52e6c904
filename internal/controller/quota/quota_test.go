// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// world is an API server with a node of two T4, a quota, a counter, and as many webhooks as are made.
type world struct {
	client.Client
	*Counter
	feature *feature.Controller
	later   time.Duration // how much later it is for the counter
}

// newWorld has the quotas, with limits as "memory=40Gi gpus=3" by name.
func newWorld(t *testing.T, limits map[string]string) *world {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, cluster.AddGPUQuotas} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns",
		Labels: map[string]string{cluster.QuotaLabel: "on"}}}}
	for name, text := range limits {
		q := &cluster.GPUQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		q.Spec.Hard = corev1.ResourceList{}
		for _, limit := range strings.Fields(text) {
			what, amount, _ := strings.Cut(limit, "=")
			q.Spec.Hard[corev1.ResourceName(what)] = resource.MustParse(amount)
		}
		objects = append(objects, q)
	}
	w := &world{Client: fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).
		WithStatusSubresource(&cluster.GPUQuota{}).Build()}
	w.feature = &feature.Controller{View: clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}),
		Direct: w.Client, Known: func() error { return nil }, Guard: feature.NewGuard()}
	w.Counter = NewCounter(w.feature, metrics.NewQuotas())
	w.now = func() time.Time { return time.Now().Add(w.later) }
	return w
}

// count counts all quotas, until no claim has been admitted meanwhile.
func (w *world) count(t *testing.T) {
	t.Helper()
	var all cluster.GPUQuotaList
	if err := w.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, q := range all.Items {
		for after := settle; after == settle; {
			result, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&q)})
			if err != nil {
				t.Fatal(err)
			}
			after = result.RequeueAfter
		}
	}
}

// quota returns the quota as text.
func (w *world) quota(t *testing.T, name string) string {
	t.Helper()
	var q cluster.GPUQuota
	if err := w.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, &q); err != nil {
		t.Fatal(err)
	}
	used := ""
	for _, resource := range []corev1.ResourceName{"cores", "gpus", "memory", "tflops"} {
		if n, ok := q.Status.Used[resource]; ok {
			used += fmt.Sprintf("%s=%s ", resource, n.String())
		}
	}
	return fmt.Sprintf("%spending=%d enforced=%t", used, len(q.Status.Pending), q.Status.Enforced)
}

// share returns a claim for a part of a GPU.
func share(t testing.TB, name, memory string) *resourceapi.ResourceClaim {
	t.Helper()
	c := clustertest.Claim(t, "requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, "+
		"capacity: {requests: {memory: "+memory+"}}}}]")
	c.Name, c.UID = name, types.UID("uid-"+name)
	return c
}

// review asks the webhook whether the claim may be created.
func review(t testing.TB, w *Webhook, claim *resourceapi.ResourceClaim, dryRun bool) webhook.Response {
	t.Helper()
	raw, err := json.Marshal(claim)
	if err != nil {
		t.Fatal(err)
	}
	return w.Handle(t.Context(), webhook.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "ns",
		Name: claim.Name, DryRun: &dryRun, Object: runtime.RawExtension{Raw: raw}}})
}

// 500 claims come at once, to two replicas, while the leader counts. What exists never exceeds the quota, and in the
// end the count is right.
func TestAtOnce(t *testing.T) {
	for _, row := range []struct {
		name             string
		refused, deleted int // one of so many claims: by another webhook, or soon after it was created. 0: none
	}{
		{"all that are admitted stay", 0, 0},
		{"others refuse some, and some are deleted", 4, 4},
	} {
		t.Run(row.name, func(t *testing.T) { atOnce(t, row.refused, row.deleted) })
	}
}

func atOnce(t *testing.T, refused, deleted int) {
	const hard, claims = 60, 500 // of a GiB
	w := newWorld(t, map[string]string{"memory": "memory=60Gi", "gpus": "gpus=1k"})
	w.count(t)
	ended, counted := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(counted)
		for ; ; w.count(t) {
			select {
			case <-ended:
				return
			default:
			}
		}
	}()
	var exist, most, admitted atomic.Int64
	webhooks := []*Webhook{NewWebhook(w.feature), NewWebhook(w.feature)}
	chosen := func(one int) bool { return one > 0 && rand.IntN(one) == 0 }
	var all sync.WaitGroup
	for i := range claims {
		all.Go(func() {
			claim := share(t, fmt.Sprint("c", i), "1Gi")
			response := review(t, webhooks[i%2], claim, false)
			for !response.Allowed && response.Result.Code == http.StatusServiceUnavailable {
				response = review(t, webhooks[i%2], claim, false) // the machine is slow, and the user tries again
			}
			if !response.Allowed {
				if !strings.Contains(response.Result.Message, "of 60Gi left") {
					t.Errorf("got %q", response.Result.Message)
				}
				return
			}
			if admitted.Add(1); chosen(refused) {
				return
			}
			time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) // until the API server has stored it
			most.Store(max(most.Load(), exist.Add(1)))
			if err := w.Create(t.Context(), claim); err != nil {
				t.Error(err)
			}
			if chosen(deleted) {
				exist.Add(-1)
				if err := w.Delete(t.Context(), claim); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	close(ended)
	<-counted
	if refused+deleted == 0 && admitted.Load() != hard || admitted.Load() < hard || most.Load() > hard {
		t.Errorf("got %d claims admitted, and %d at the same time; want %d", admitted.Load(), most.Load(), hard)
	}
	w.later = PendingFor + time.Second
	w.count(t)
	want := fmt.Sprintf("memory=%dGi pending=0 enforced=true", exist.Load())
	if got := w.quota(t, "memory"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What the webhook answers, and what is charged.
func TestWebhook(t *testing.T) {
	whole := clustertest.Claim(t,
		"requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All}}]")
	foreign := clustertest.Claim(t, "requests: []")
	generated := share(t, "made-x7", "50Gi")
	generated.GenerateName = "made-"
	none := clustertest.Claim(t, `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: `+
		`{expression: "device.attributes['gpu.nvidia.com'].productName == 'B200'"}}]}}]`)
	const hint = ": ask for less in capacity.requests, select a smaller GPU, delete claims of the namespace, or let " +
		"the administrator raise the quota"
	for _, row := range []struct {
		name   string
		limits map[string]string
		claim  *resourceapi.ResourceClaim
		dryRun bool
		answer string // "": it is admitted
		quota  string // a afterwards
	}{
		{"there is room", map[string]string{"a": "memory=10Gi cores=100"}, share(t, "c", "5Gi"), false, "",
			"cores=0 memory=5Gi pending=1 enforced=true"},
		{"a dry run charges nothing", map[string]string{"a": "memory=10Gi"}, share(t, "c", "5Gi"), true, "",
			"memory=0 pending=0 enforced=true"},
		{"there is too little", map[string]string{"a": "memory=4Gi"}, share(t, "c", "5Gi"), false,
			"claim c: it may take 5Gi of GPU memory, and GPUQuota a has 4Gi of 4Gi left" + hint,
			"memory=0 pending=0 enforced=true"},
		{"one of two quotas has too little", map[string]string{"a": "memory=10Gi", "b": "gpus=0 tflops=50"},
			share(t, "c", "5Gi"), false, "claim c: it may take 1 GPUs or parts, and GPUQuota b has 0 of 0 left" + hint,
			"memory=0 pending=0 enforced=true"},
		{"a generated name is not repeated", map[string]string{"a": "gpus=0"}, generated, false,
			"the claim: it may take 1 GPUs or parts, and GPUQuota a has 0 of 0 left" + hint,
			"gpus=0 pending=0 enforced=true"},
		{"an unknown number of GPUs", map[string]string{"a": "memory=100Gi"}, whole, false,
			"claim claim: how much of GPUs it may take is not known, and a GPUQuota limits that: request gpu: " +
				"allocationMode All: how many devices it gets is not known before; write a count",
			"memory=0 pending=0 enforced=true"},
		{"a GPU that nobody publishes", map[string]string{"a": "memory=100Gi cores=100"}, none, false,
			"claim claim: no published GPU is for it, so its memory is not known, and " +
				"GPUQuota a limits it to 100Gi" + hint,
			"cores=0 memory=0 pending=0 enforced=true"},
		{"a GPU that nobody publishes, where its number is limited", map[string]string{"a": "gpus=1"}, none, false, "",
			"gpus=1 pending=1 enforced=true"},
		{"no GPUs", map[string]string{"a": "gpus=0"}, foreign, false, "", "gpus=0 pending=0 enforced=true"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, row.limits)
			w.count(t)
			response := review(t, NewWebhook(w.feature), row.claim, row.dryRun)
			got := response.Result.Message
			if response.Allowed != (row.answer == "") || !response.Allowed && got != row.answer {
				t.Errorf("got %q\nwant %q", got, row.answer)
			}
			if got := w.quota(t, "a"); got != row.quota {
				t.Errorf("got %s, want %s", got, row.quota)
			}
		})
	}
}

// The refusal of a share names the GPU without shares that makes it large, and the selector that avoids it.
func TestRefusalOfAShareThatMayBeAWholeGPU(t *testing.T) {
	w := newWorld(t, map[string]string{"a": "memory=12Gi"})
	w.feature.View = clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"},
		clustertest.SimNode{Name: "b", Profile: "t4-x2", Use: gpu.SharingMode{Sharing: gpu.Exclusive}})
	w.count(t)
	got := review(t, NewWebhook(w.feature), share(t, "c", "5Gi"), false).Result.Message
	const want = "it may get a whole Tesla T4, which has no shares: for a share of another one, add the selector " +
		"device.attributes['gpu.nvidia.com'].sharing == 'fractional'"
	if !strings.HasPrefix(got, "claim c: it may take 15Gi of GPU memory") || !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want 15Gi, and at the end %q", got, want)
	}
}

// What the leader counts, after claims were admitted.
func TestCount(t *testing.T) {
	held := func(c *resourceapi.ResourceClaim, node string) *resourceapi.ResourceClaim {
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: clustertest.Driver,
				Pool: node, Device: "gpu-3b-00-0", ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
					"memory": resource.MustParse("2Gi")}}}}}
		return c
	}
	for _, row := range []struct {
		name  string
		after func(t *testing.T, w *world, claim *resourceapi.ResourceClaim) // the claim for 5Gi is admitted
		want  string
	}{
		{"it is not created yet", func(*testing.T, *world, *resourceapi.ResourceClaim) {},
			"gpus=1 memory=5Gi pending=1 enforced=true"},
		{"it was never created", func(_ *testing.T, w *world, _ *resourceapi.ResourceClaim) { w.later = PendingFor },
			"gpus=0 memory=0 pending=0 enforced=true"},
		{"it exists", func(t *testing.T, w *world, c *resourceapi.ResourceClaim) { must(t, w.Create(t.Context(), c)) },
			"gpus=1 memory=5Gi pending=0 enforced=true"},
		{"another of its name exists", func(t *testing.T, w *world, c *resourceapi.ResourceClaim) {
			c.UID = "other"
			must(t, w.Create(t.Context(), c))
		}, "gpus=2 memory=10Gi pending=1 enforced=true"},
		{"it has got less", func(t *testing.T, w *world, c *resourceapi.ResourceClaim) {
			must(t, w.Create(t.Context(), held(c, "a")))
		}, "gpus=1 memory=2Gi pending=0 enforced=true"},
		{"it is deleted", func(t *testing.T, w *world, c *resourceapi.ResourceClaim) {
			must(t, w.Create(t.Context(), c))
			w.count(t)
			must(t, w.Delete(t.Context(), c))
		}, "gpus=0 memory=0 pending=0 enforced=true"},
		{"its GPU is not published for a while", func(t *testing.T, w *world, c *resourceapi.ResourceClaim) {
			must(t, w.Create(t.Context(), held(c, "away")))
		}, "gpus=1 memory=2Gi pending=0 enforced=true"},
		{"another has a GPU that is not published, of unknown size", func(t *testing.T, w *world,
			c *resourceapi.ResourceClaim) {
			c.UID = "other"
			c = held(c, "away")
			c.Status.Allocation.Devices.Results[0].ConsumedCapacity = nil
			must(t, w.Create(t.Context(), c))
			w.later = PendingFor
		}, "gpus=1 memory=5Gi pending=0 enforced=true"},
		{"it is larger than a GPU that is not published", func(t *testing.T, w *world, c *resourceapi.ResourceClaim) {
			must(t, w.Create(t.Context(), held(c, "away")))
			var q cluster.GPUQuota
			must(t, w.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "a"}, &q))
			q.Status.Used["memory"] = resource.MustParse("9Gi") // others are deleted
			must(t, w.Status().Update(t.Context(), &q))
		}, "gpus=1 memory=2Gi pending=0 enforced=true"},
		{"its class is deleted", func(t *testing.T, w *world, c *resourceapi.ResourceClaim) {
			must(t, w.Create(t.Context(), c))
			w.feature.View.DeleteClass("gpu.nvidia.com")
		}, "gpus=0 memory=0 pending=0 enforced=true"},
		{"another limit is set while a GPU is not published", func(t *testing.T, w *world,
			c *resourceapi.ResourceClaim) {
			must(t, w.Create(t.Context(), held(c, "away")))
			var q cluster.GPUQuota
			must(t, w.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "a"}, &q))
			q.Spec.Hard = corev1.ResourceList{"cores": resource.MustParse("100"), "tflops": resource.MustParse("100")}
			must(t, w.Update(t.Context(), &q))
		}, "cores=100 tflops=65 pending=0 enforced=true"},
		{"another limit is set while no GPU is published", func(t *testing.T, w *world, c *resourceapi.ResourceClaim) {
			c = held(c, "away")
			must(t, w.Create(t.Context(), c))
			w.view = cluster.New(clustertest.Driver)
			var q cluster.GPUQuota
			must(t, w.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "a"}, &q))
			q.Spec.Hard["tflops"] = resource.MustParse("100")
			must(t, w.Update(t.Context(), &q))
		}, "gpus=1 memory=2Gi pending=0 enforced=true"},
		{"another limit is set", func(t *testing.T, w *world, c *resourceapi.ResourceClaim) {
			must(t, w.Create(t.Context(), c))
			var q cluster.GPUQuota
			must(t, w.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "a"}, &q))
			q.Spec.Hard = corev1.ResourceList{"cores": resource.MustParse("100")}
			must(t, w.Update(t.Context(), &q))
		}, "cores=0 pending=0 enforced=true"},
		{"the namespace loses its label", func(t *testing.T, w *world, _ *resourceapi.ResourceClaim) {
			must(t, w.Update(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}))
		}, "gpus=1 memory=5Gi pending=1 enforced=false"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, map[string]string{"a": "memory=10Gi gpus=2"})
			w.count(t)
			claim := share(t, "c", "5Gi")
			if response := review(t, NewWebhook(w.feature), claim, false); !response.Allowed {
				t.Fatal(response.Result.Message)
			}
			row.after(t, w, claim)
			w.count(t)
			if got := w.quota(t, "a"); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// A quota that nobody counts is not waited for until the API server gives up: others have claims meanwhile.
func TestNobodyCounts(t *testing.T) {
	w := newWorld(t, map[string]string{"a": "memory=10Gi"})
	got := review(t, NewWebhook(w.feature), share(t, "c", "5Gi"), false).Result
	const want = "GPUQuota a is not counted yet: try again, and see whether the controller has a leader"
	if got.Code != http.StatusServiceUnavailable || got.Message != want {
		t.Errorf("got %d %q, want 503 %q", got.Code, got.Message, want)
	}
}

// What may be otherwise at the next try is no refusal of the claim.
func TestRefusal(t *testing.T) {
	const refused = exceededError("GPUQuota a has 0 of 1 left")
	for _, row := range []struct {
		unknown error
		code    int32
		message string
	}{
		{nil, http.StatusForbidden, "claim c: GPUQuota a has 0 of 1 left"},
		{cluster.ErrAll, http.StatusForbidden,
			"claim c: how much of GPUs it may take is not known, and a GPUQuota limits that: " +
				cluster.ErrAll.Error()},
		{fmt.Errorf("request gpu: %w", context.DeadlineExceeded), http.StatusServiceUnavailable,
			"claim c: " + errSlow.Error()},
	} {
		if got := refusal("claim c", refused, row.unknown).Result; got.Code != row.code || got.Message != row.message {
			t.Errorf("%v: got %d %q, want %d %q", row.unknown, got.Code, got.Message, row.code, row.message)
		}
	}
}

// A class may be created together with its first claim. Whether a claim of a missing one asks for GPUs is not known.
func TestMissingClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"a": "gpus=0"})
		w.count(t)
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic.example.com"}}
		class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: "device.driver == 'nic.example.com'"}}}
		claim := clustertest.Claim(t, "requests: [{name: nic, exactly: {deviceClassName: nic.example.com}}]")
		got := review(t, NewWebhook(w.feature), claim, false).Result
		const want = "claim claim: request nic: there is no DeviceClass nic.example.com: create it, or correct " +
			"the name, and try again"
		if got.Code != http.StatusServiceUnavailable || got.Message != want {
			t.Errorf("got %d %q, want 503 %q", got.Code, got.Message, want)
		}
		time.AfterFunc(2*again, func() { w.feature.View.SetClass(class) })
		if response := review(t, NewWebhook(w.feature), claim, false); !response.Allowed {
			t.Error(response.Result.Message)
		}
	})
}

// A quota that nobody has counted is waited for.
func TestNewQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"a": "memory=10Gi"})
		counted := make(chan struct{})
		time.AfterFunc(5*again, func() {
			defer close(counted)
			w.count(t)
		})
		if response := review(t, NewWebhook(w.feature), share(t, "c", "5Gi"), false); !response.Allowed {
			t.Error(response.Result.Message)
		}
		<-counted
		if got, want := w.quota(t, "a"), "memory=5Gi pending=1 enforced=true"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// A claim that takes nothing of a limit does not make that counted.
func TestUncountedLimit(t *testing.T) {
	w := newWorld(t, map[string]string{"a": "memory=10Gi cores=100"})
	var q cluster.GPUQuota
	must(t, w.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "a"}, &q))
	q.Status.Used = corev1.ResourceList{"memory": resource.MustParse("0")} // cores were added to the limits
	must(t, w.Status().Update(t.Context(), &q))
	if response := review(t, NewWebhook(w.feature), share(t, "c", "5Gi"), false); !response.Allowed {
		t.Fatal(response.Result.Message)
	}
	if got, want := w.quota(t, "a"), "memory=5Gi pending=1 enforced=true"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// For people, what is used stands beside each limit, in its unit.
func TestSummary(t *testing.T) {
	quantities := func(text string) corev1.ResourceList {
		all := corev1.ResourceList{}
		for _, one := range strings.Fields(text) {
			name, n, _ := strings.Cut(one, "=")
			all[corev1.ResourceName(name)] = resource.MustParse(n)
		}
		return all
	}
	for _, row := range []struct{ hard, used, want string }{
		{"memory=200Gi gpus=8", "memory=81559Mi gpus=3", "gpus 3/8, memory 79.7Gi/200Gi"},
		{"memory=1Ti", "memory=200Gi", "memory 0.2Ti/1Ti"},
		{"memory=1500M cores=400 tflops=2000", "memory=1Gi cores=180 tflops=630",
			"cores 180/400, memory 1073.8M/1500M, tflops 630/2000"},
		{"memory=2048Mi gpus=0", "memory=0", "gpus ?/0, memory 0Gi/2Gi"},
	} {
		q := &cluster.GPUQuota{Spec: cluster.GPUQuotaSpec{Hard: quantities(row.hard)}}
		amount := cluster.Amount{}
		for name, n := range quantities(row.used) {
			amount[name] = n.Value()
		}
		if use(q, amount); q.Status.Summary != row.want {
			t.Errorf("%s of %s: got %s, want %s", row.used, row.hard, q.Status.Summary, row.want)
		}
	}
}

// A count has few claims in memory at a time, however many a namespace has: a claim may have 1.5 MB.
func TestPages(t *testing.T) {
	const claims = 2*perPage + 1
	w := newWorld(t, map[string]string{"a": "memory=100Gi gpus=100"})
	for i := range claims {
		must(t, w.Create(t.Context(), share(t, fmt.Sprint("c", i), "1Gi")))
	}
	most := 0
	w.direct = interceptor.NewClient(w.Client.(client.WithWatch), interceptor.Funcs{List: func(ctx context.Context,
		c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if err := c.List(ctx, list, opts...); err != nil {
			return err
		}
		if page, ok := list.(*resourceapi.ResourceClaimList); ok {
			o := (&client.ListOptions{}).ApplyOptions(opts)
			from, _ := strconv.Atoi(o.Continue)
			page.Items = page.Items[from:]
			if o.Limit > 0 && int64(len(page.Items)) > o.Limit {
				page.Items, page.Continue = page.Items[:o.Limit], strconv.Itoa(from+int(o.Limit))
			}
			most = max(most, len(page.Items))
		}
		return nil
	}})
	w.count(t)
	if got, want := w.quota(t, "a"), "gpus=41 memory=41Gi pending=0 enforced=true"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if most > perPage {
		t.Errorf("got %d claims at a time, want at most %d", most, perPage)
	}
}

// The kind may be installed after the controller has started: quotas are counted from then on.
func TestLaterKind(t *testing.T) {
	noKind := &meta.NoKindMatchError{GroupKind: cluster.QuotaVersion.WithKind("GPUQuota").GroupKind()}
	answers, started := []error{noKind, errors.New("the API server is away"), nil}, 0
	must(t, later{
		served: func() error {
			answer := answers[0]
			answers = answers[1:]
			return answer
		},
		start:  func() error { started++; return nil },
		period: time.Millisecond,
	}.Start(t.Context()))
	if started != 1 || len(answers) > 0 {
		t.Errorf("got %d starts with %d answers left, want 1 with none", started, len(answers))
	}
}

// Where selectors take too long, their claims count as the largest GPU, and the count ends.
func TestSlowSelectors(t *testing.T) {
	w := newWorld(t, map[string]string{"a": "memory=100Gi gpus=100"})
	must(t, w.Create(t.Context(), share(t, "c", "5Gi")))
	w.evaluation = 0
	w.count(t)
	if got, want := w.quota(t, "a"), "gpus=1 memory=15Gi pending=0 enforced=true"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestMetric(t *testing.T) {
	w := newWorld(t, map[string]string{"a": "memory=10Gi gpus=2"})
	must(t, w.Create(t.Context(), share(t, "c", "5Gi")))
	w.count(t)
	const want = `# HELP gpu_dra_cluster_quota What a GPUQuota allows (hard) of a resource, and what the claims of its namespace use of that (used).
# TYPE gpu_dra_cluster_quota gauge
gpu_dra_cluster_quota{namespace="ns",quota="a",resource="gpus",type="hard"} 2
gpu_dra_cluster_quota{namespace="ns",quota="a",resource="gpus",type="used"} 1
gpu_dra_cluster_quota{namespace="ns",quota="a",resource="memory",type="hard"} 1.073741824e+10
gpu_dra_cluster_quota{namespace="ns",quota="a",resource="memory",type="used"} 5.36870912e+09
`
	must(t, testutil.CollectAndCompare(w.amounts, strings.NewReader(want)))
	q := &cluster.GPUQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
	must(t, w.Delete(t.Context(), q))
	_, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(q)})
	must(t, err)
	if n := testutil.CollectAndCount(w.amounts); n != 0 {
		t.Errorf("got %d values of a quota that is deleted, want none", n)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
