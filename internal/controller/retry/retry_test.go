// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

const (
	class  = "retry.gpu.nvidia.com"
	share  = `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 5Gi, cores: "40"}}}}]`
	half   = "5Gi 40"
	all    = "15Gi 100"
	first  = "gpu-3b-00-0" // the GPUs of the profile t4-x2
	second = "gpu-af-00-0"
)

// world is a node with two T4, a scheduler's class, and time that passes in rounds.
type world struct {
	*Retrier
	api     *kubefake.Clientset
	view    *cluster.View
	pods    []*corev1.Pod
	now     time.Duration
	retried []string // when
	fails   error
}

func newWorld(t *testing.T, use gpu.SharingMode, claims ...*resourceapi.ResourceClaim) *world {
	t.Helper()
	w := &world{api: kubefake.NewClientset(),
		view: clustertest.New(t, clustertest.SimNode{Name: "node-1", Profile: "t4-x2", Use: use})}
	for _, c := range claims {
		w.view.SetClaim(cluster.SlimClaim(c))
	}
	writes := fake.NewClientBuilder().WithScheme(scheme.Scheme).
		WithObjects(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}}).
		WithInterceptorFuncs(interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object,
			p client.Patch, options ...client.PatchOption) error {
			w.retried = append(w.retried, fmt.Sprint(w.now))
			if w.fails != nil {
				return w.fails
			}
			return c.Patch(ctx, o, p, options...)
		}}).Build()
	w.Retrier = newRetrier(&feature.Controller{View: w.view, Known: func() error { return nil }, Direct: writes,
		Guard: feature.NewGuard(), Waiting: waiting.New(w.api)}, class)
	return w
}

// hold lets a claim hold a part of a GPU, as "memory cores".
func (w *world) hold(device, part string) {
	memory, cores, _ := strings.Cut(part, " ")
	w.holds(device, map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory),
		"cores": resource.MustParse(cores)})
}

func (w *world) holds(device string, part map[resourceapi.QualifiedName]resource.Quantity) {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "of-" + device}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: clustertest.Driver,
			Pool: "node-1", Device: device, ConsumedCapacity: part}}}}
	w.view.SetClaim(c)
}

// pass runs rounds for that long.
func (w *world) pass(t *testing.T, d time.Duration) {
	t.Helper()
	for end := w.now + d; w.now < end; w.now += period {
		if err := w.round(t.Context(), w.pods, time.Unix(0, 0).Add(w.now)); err != nil && w.fails == nil {
			t.Fatal(err)
		}
	}
}

// refused returns a pod that uses the claims and was refused.
func refused(name string, claims ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	for _, claim := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim,
			ResourceClaimName: ptr.To(claim)})
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonUnschedulable}}
	return pod
}

func named(t *testing.T, name, devices string) *resourceapi.ResourceClaim {
	t.Helper()
	c := clustertest.Claim(t, devices)
	c.Name, c.UID = name, types.UID(name)
	return c
}

// A pod is retried only if a share of it fits beside others.
func TestWhichPodsAreRetried(t *testing.T) {
	request := func(rest string) string {
		return `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, ` + rest + `}}]`
	}
	part := `capacity: {requests: {memory: 5Gi, cores: "40"}}`
	shared := gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 2}
	extended := func(resourceName string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.ResourceClaims = nil
			p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceName(resourceName): resource.MustParse("1")}}}}
		}
	}
	for _, row := range []struct {
		name   string
		use    gpu.SharingMode
		held   string // of the first GPU; empty: it is idle
		claim  string
		change func(*corev1.Pod)
		want   bool
	}{
		{"a share fits beside another", gpu.SharingMode{}, half, share, nil, true},
		{"a share fits on an idle GPU only", gpu.SharingMode{}, all, share, nil, false},
		{"a share fits, and both GPUs are idle", gpu.SharingMode{}, "", share, nil, false},
		{"a whole GPU", gpu.SharingMode{}, half, request("count: 1"), nil, false},
		{"two shares, of two GPUs", gpu.SharingMode{}, half, request("count: 2, " + part), nil, true},
		{"three shares, of two GPUs", gpu.SharingMode{}, half, request("count: 3, " + part), nil, false},
		{"all GPUs", gpu.SharingMode{}, half, request("allocationMode: All, " + part), nil, true},
		{"all GPUs, and one has no room", gpu.SharingMode{}, all, request("allocationMode: All, " + part), nil, false},
		{"a share of another model", gpu.SharingMode{}, half, request(part + `, selectors: [{cel: {expression: ` +
			`"device.attributes['gpu.nvidia.com'].productName == 'H100'"}}]`), nil, false},
		{"a class that does not exist", gpu.SharingMode{}, half, strings.ReplaceAll(share, "gpu.nvidia.com", "x"), nil,
			false},
		{"another driver's device", gpu.SharingMode{}, half, `requests: [{name: nic, exactly: {deviceClassName: nic}}]`, nil,
			false},
		{"a share and another driver's device", gpu.SharingMode{}, half, share[:len(share)-1] +
			`, {name: nic, exactly: {deviceClassName: nic}}]`, nil, true},
		{"a share and a whole GPU", gpu.SharingMode{}, half, share[:len(share)-1] +
			`, {name: b, exactly: {deviceClassName: gpu.nvidia.com}}]`, nil, true},
		{"a share, or a whole GPU", gpu.SharingMode{}, half, `requests: [{name: gpu, firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com, count: 2}, {name: b, deviceClassName: gpu.nvidia.com, ` + part + `}]}]`,
			nil, true},
		{"exclusive GPUs", gpu.SharingMode{Sharing: gpu.Exclusive}, half, share, nil, false},
		{"a scheduling gate", gpu.SharingMode{}, half, share, func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "queue"}}
		}, false},
		{"not tried yet", gpu.SharingMode{}, half, share, func(p *corev1.Pod) { p.Status.Conditions = nil }, false},
		{"it is being deleted", gpu.SharingMode{}, half, share, func(p *corev1.Pod) {
			p.DeletionTimestamp = ptr.To(metav1.Now())
		}, false},
		{"another scheduler", gpu.SharingMode{}, half, share,
			func(p *corev1.Pod) { p.Spec.SchedulerName = "second" }, true},
		{"its claim does not exist", gpu.SharingMode{}, half, share, func(p *corev1.Pod) {
			p.Spec.ResourceClaims[0].ResourceClaimName = ptr.To("missing")
		}, false},
		{"its claim is not generated", gpu.SharingMode{}, half, share, func(p *corev1.Pod) {
			p.Spec.ResourceClaims[0].ResourceClaimName = nil
			p.Spec.ResourceClaims[0].ResourceClaimTemplateName = ptr.To("template")
		}, false},
		{"its claim is allocated", gpu.SharingMode{}, half, share, func(p *corev1.Pod) {
			p.Spec.ResourceClaims[0].ResourceClaimName = ptr.To("allocated")
		}, false},
		{"a second claim does not fit", gpu.SharingMode{}, half, share, func(p *corev1.Pod) {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "large",
				ResourceClaimName: ptr.To("large")})
		}, false},
		{"the last replica, an extended resource", shared, "replica", share, extended("nvidia.com/gpu.shared"), true},
		{"the last replica, by the name of the class", shared, "replica", share,
			extended("deviceclass.resource.kubernetes.io/shared.gpu.nvidia.com"), true},
		{"replicas for three containers", gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 4}, "replica", share,
			func(p *corev1.Pod) {
				extended("nvidia.com/gpu.shared")(p)
				p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0], p.Spec.Containers[0])
			}, true},
		{"a claim twice", gpu.SharingMode{}, half, share, func(p *corev1.Pod) {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, p.Spec.ResourceClaims[0], p.Spec.ResourceClaims[0])
		}, true},
		{"more claims than a pod needs", gpu.SharingMode{}, half, share, func(p *corev1.Pod) {
			for range 100 {
				p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, p.Spec.ResourceClaims[0])
			}
		}, false},
		{"replicas, and all are idle", shared, "", share, extended("nvidia.com/gpu.shared"), false},
		{"another extended resource", shared, "replica", share, extended("example.com/nic"), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			done := named(t, "allocated", share)
			done.Status.Allocation = &resourceapi.AllocationResult{}
			w := newWorld(t, row.use, named(t, "claim", row.claim), done, named(t, "large", request("count: 3")))
			w.view.SetClass(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}})
			switch row.held {
			case "":
			case "replica":
				w.holds(first, map[resourceapi.QualifiedName]resource.Quantity{"shares": resource.MustParse("1")})
			default:
				w.hold(first, row.held)
			}
			pod := refused("pod", "claim")
			if row.change != nil {
				row.change(pod)
			}
			w.pods = []*corev1.Pod{waiting.Slim(pod)}
			w.pass(t, 3*settle)
			if got := len(w.retried) > 0; got != row.want {
				t.Errorf("got retries at %v, want some: %t", w.retried, row.want)
			}
		})
	}
}

// The pauses grow, and end.
func TestPauses(t *testing.T) {
	for _, row := range []struct {
		name string
		then func(t *testing.T, w *world)
		want string
	}{
		{"a pod that cannot run", func(t *testing.T, w *world) { w.pass(t, time.Hour) },
			"1s 2s 4s 8s 16s 32s 1m4s 2m4s 3m4s"},
		{"it runs", func(t *testing.T, w *world) {
			w.pass(t, 2*time.Second)
			w.pods = nil
			w.pass(t, time.Hour)
		}, "1s"},
		{"it fits only for a moment", func(t *testing.T, w *world) {
			w.pass(t, settle)
			w.hold(first, all)
			w.pass(t, time.Minute)
		}, ""},
		{"another pod comes when many retries were in vain", func(t *testing.T, w *world) {
			w.pass(t, 40*time.Second)
			w.pods = append(w.pods, refused("other", "claim"))
			w.pass(t, 30*time.Second)
		}, "1s 2s 4s 8s 16s 32s 41s 43s"},
		{"pods that cannot run come all the time", func(t *testing.T, w *world) {
			for i := range 60 {
				w.pods = append(w.pods, refused(fmt.Sprint(i), "claim"))
				w.pass(t, time.Second)
			}
		}, "1s 2s 4s 6s 8s 10s 12s 14s 16s 18s 20s 22s 24s 26s 28s 30s 32s 34s 36s 38s 40s 42s 44s 46s 48s " +
			"50.5s 53s 55.5s 58s"},
		{"another pod comes when one has run", func(t *testing.T, w *world) {
			w.pass(t, 40*time.Second)
			w.pods = []*corev1.Pod{refused("other", "claim")}
			w.pass(t, 3*time.Second)
		}, "1s 2s 4s 8s 16s 32s 41s 42s"},
		{"many pods are retried together", func(t *testing.T, w *world) {
			for i := range 200 {
				w.pods = append(w.pods, refused(fmt.Sprint(i), "claim"))
			}
			w.pass(t, 1500*time.Millisecond)
		}, "1s"},
		{"the class cannot be updated", func(t *testing.T, w *world) {
			w.fails = errors.New("not found")
			w.pass(t, time.Hour)
		}, "1s 2s 4s 8s 16s 32s 1m4s 2m4s 3m4s"},
		{"it waits again after it did not fit", func(t *testing.T, w *world) {
			w.pass(t, time.Hour)
			w.hold(first, all)
			w.pass(t, time.Minute)
			w.hold(first, half)
			w.retried = nil
			w.pass(t, 2*time.Second)
		}, "1h1m1s"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, gpu.SharingMode{}, named(t, "claim", share))
			w.hold(first, half)
			w.hold(second, all)
			w.pods = []*corev1.Pod{refused("pod", "claim")}
			row.then(t, w)
			if got := strings.Join(w.retried, " "); got != row.want {
				t.Errorf("got retries at %s, want %s", got, row.want)
			}
		})
	}
}

// What equal pods lack is in memory once, and is forgotten with them.
func TestShapes(t *testing.T) {
	w := newWorld(t, gpu.SharingMode{}, named(t, "claim", share))
	w.hold(first, all)
	for i := range 300 {
		w.pods = append(w.pods, refused(fmt.Sprint(i), "claim"))
	}
	w.pass(t, period)
	if got := len(w.shapes); got != 1 {
		t.Errorf("got %d shapes in memory, want 1 for all replicas", got)
	}
	w.pods = nil
	w.pass(t, period)
	if len(w.shapes)+len(w.waiting) > 0 {
		t.Errorf("got %d shapes and %d pods in memory, want none", len(w.shapes), len(w.waiting))
	}
}

// A claim that does not exist yet, or has devices that the scheduler takes back, counts as soon as it lacks devices.
func TestClaimThatLacksDevicesLater(t *testing.T) {
	allocated := named(t, "claim", share)
	allocated.Status.Allocation = &resourceapi.AllocationResult{}
	for name, claims := range map[string][]*resourceapi.ResourceClaim{"does not exist": nil, "allocated": {allocated}} {
		w := newWorld(t, gpu.SharingMode{}, claims...)
		w.hold(first, half)
		w.pods = []*corev1.Pod{refused("pod", "claim")}
		w.pass(t, 3*settle)
		if len(w.retried) > 0 {
			t.Errorf("%s: retried at %v, want no retry", name, w.retried)
		}
		w.view.SetClaim(cluster.SlimClaim(named(t, "claim", share)))
		w.pass(t, settle+2*period)
		if len(w.retried) == 0 {
			t.Errorf("%s: not retried since the claim lacks a GPU", name)
		}
	}
}

// The last GPU with room is kept for a team: only pods of the team are retried.
func TestReservedGPUs(t *testing.T) {
	for value, want := range map[string]bool{"vision": true, "speech": false} {
		w := newWorld(t, gpu.SharingMode{}, named(t, "claim", strings.Replace(share, "capacity:", `tolerations: [{key: `+
			cluster.ReservedTaint+`, operator: Equal, value: `+value+`, effect: NoSchedule}], capacity:`, 1)))
		w.hold(first, half)
		w.hold(second, all)
		w.view.SetTaintRule(&resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(clustertest.Driver)},
			Taint: resourceapi.DeviceTaint{Key: cluster.ReservedTaint, Value: "vision",
				Effect: resourceapi.DeviceTaintEffectNoSchedule}}})
		w.pods = []*corev1.Pod{refused("pod", "claim")}
		w.pass(t, 3*settle)
		if got := len(w.retried) > 0; got != want {
			t.Errorf("a pod of team %s: got retries at %v, want some: %t", value, w.retried, want)
		}
	}
}

// The leader learns of pods by a watch, and a refused pod is retried by an update of the class.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, gpu.SharingMode{}, named(t, "claim", share))
		w.hold(first, half)
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Start(ctx) }()
		time.Sleep(10*period + period/2) // between two rounds
		if got := len(w.retried); got != 0 {
			t.Errorf("got %d retries without a pod", got)
		}
		if _, err := w.api.CoreV1().Pods("ns").Create(ctx, refused("pod", "claim"),
			metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
		time.Sleep(settle + 2*period)
		var updated resourceapi.DeviceClass
		if err := w.client.Get(ctx, client.ObjectKey{Name: class}, &updated); err != nil {
			t.Error(err)
		}
		at, err := time.Parse(time.RFC3339Nano, updated.Annotations[annotation])
		if since := time.Since(at); err != nil || since < 0 || since > 2*period {
			t.Errorf("got the annotation %q (%v), want the time of the retry", updated.Annotations[annotation], err)
		}
		if got := testutil.ToFloat64(w.retries); got != 1 {
			t.Errorf("got %v retries, want 1", got)
		}
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Pods that differ only by what their claims tolerate for one pod alone have one shape.
func TestShapesWithoutTokens(t *testing.T) {
	devices := func(pod string) string {
		return `requests: [{name: gpu, firstAvailable: [{name: one, deviceClassName: gpu.nvidia.com, tolerations: [{key:
			gpu.nvidia.com/preemption, operator: Equal, value: ` + pod + `, effect: NoSchedule}]}]}]`
	}
	w := newWorld(t, gpu.SharingMode{Sharing: gpu.Exclusive}, named(t, "a", devices("a")), named(t, "b", devices("b")))
	w.pods = []*corev1.Pod{refused("a", "a"), refused("b", "b")}
	w.pass(t, period)
	if a, b := w.waiting["a"].shape, w.waiting["b"].shape; a == nil || a != b {
		t.Errorf("got the shapes %+v and %+v, want one", a, b)
	}
}
