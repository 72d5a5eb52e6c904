// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// start is when all claims of the tests become idle.
var start = time.Date(2026, 11, 25, 8, 0, 0, 0, time.UTC)

// world is a cluster with a node of two GPUs, and a namespace whose pods may be idle for two hours. The pod has two
// claims, of which only the first exists at first.
type world struct {
	t     *testing.T
	gpus  []string
	pod   *corev1.Pod
	label string // of the namespace; empty: it has none
	view  *cluster.View
	did   []string
	fails error // of an eviction
	// server changes what the API server has of a claim, after the view has got it; nil: it is the same.
	server func(*resourceapi.ResourceClaim)
	claims map[string]*resourceapi.ResourceClaim
	reads  int // of pods
	*evictor
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, label: "2h", claims: map[string]*resourceapi.ResourceClaim{},
		view: clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})}
	for g := range w.view.GPUs {
		w.gpus = append(w.gpus, g.Name)
	}
	slices.Sort(w.gpus)
	w.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train", UID: "pod"},
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
			{Name: "first", ResourceClaimName: ptr.To("first")},
			{Name: "second", ResourceClaimName: ptr.To("second")}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
			Status: corev1.ConditionTrue}}}}
	w.claim("first", start, w.gpus[0])
	return w
}

// claim sets a claim of the pod, whose devices are idle since then; zero: they are used.
func (w *world) claim(name string, since time.Time, devices ...string) {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "train", UID: "pod"}}
	for _, device := range devices {
		w.device(c, device, since)
	}
	w.view.SetClaim(cluster.SlimClaim(c))
	w.claims[name] = c
}

// other adds a device of another driver to a claim of the pod.
func (w *world) other(name, driver string) {
	if w.claims[name] == nil {
		w.claim(name, start)
	}
	c := w.claims[name].DeepCopy()
	c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
		resourceapi.DeviceRequestAllocationResult{Request: "other", Driver: driver, Pool: "other", Device: "device"})
	w.view.SetClaim(cluster.SlimClaim(c))
	w.claims[name] = c
}

func (w *world) device(c *resourceapi.ResourceClaim, name string, since time.Time) {
	c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
		resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: clustertest.Driver, Pool: "a", Device: name})
	status := metav1.ConditionTrue
	if since.IsZero() {
		status = metav1.ConditionFalse
	}
	c.Status.Devices = append(c.Status.Devices, resourceapi.AllocatedDeviceStatus{Driver: clustertest.Driver, Pool: "a",
		Device: name, Conditions: []metav1.Condition{{Type: gpu.IdleCondition, Status: status,
			LastTransitionTime: metav1.NewTime(since)}}})
}

// lead makes a new leader of the controller.
func (w *world) lead() {
	labels := map[string]string{}
	if w.label != "" {
		labels[Label] = w.label
	}
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(w.pod,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ml", Labels: labels}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{Label: "1s"}}}).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
				all ...client.GetOption) error {
				claim, ok := o.(*resourceapi.ResourceClaim)
				if !ok {
					w.reads++
					return c.Get(ctx, key, o, all...)
				}
				if w.claims[key.Name] == nil {
					return apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), key.Name)
				}
				w.claims[key.Name].DeepCopyInto(claim)
				if w.server != nil {
					w.server(claim)
				}
				return nil
			},
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, all ...client.CreateOption) error {
				if e, ok := o.(*corev1.Event); ok {
					w.did = append(w.did, e.Reason+" "+e.InvolvedObject.Name+": "+e.Message)
				}
				return c.Create(ctx, o, all...)
			},
		}).Build()
	api := kubefake.NewClientset(w.pod)
	api.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		w.did = append(w.did, a.GetSubresource()+" "+e.Name)
		if w.fails == nil {
			return true, nil, c.Delete(w.t.Context(), w.pod.DeepCopy())
		}
		return true, nil, w.fails
	})
	w.evictor = &evictor{view: w.view, direct: c, pods: api.CoreV1(), warning: 10 * time.Minute,
		evicted: metrics.NewEvictedIdlePods(), warned: map[types.UID]notice{}, spared: map[types.UID]time.Time{}}
}

// after looks at the cluster after these times, and returns what was done.
func (w *world) after(times ...time.Duration) string {
	w.t.Helper()
	if w.evictor == nil {
		w.lead()
	}
	for _, after := range times {
		if err := w.look(w.t.Context(), start.Add(after)); err != nil {
			w.did = append(w.did, err.Error())
		}
	}
	return strings.Join(w.did, "\n")
}

const (
	// An eviction comes a minute after the time of the warning.
	warns = "IdleGPU train: has not used its GPUs since 2026-11-25T08:00:00Z, and will be evicted at " +
		"2026-11-25T10:00:00Z unless it does, because its namespace has the label gpu.nvidia.com/idle-eviction=2h"
	evicted = "\neviction train\nIdleGPUEviction train: evicted: has not used its GPUs since 2026-11-25T08:00:00Z"
)

func TestEviction(t *testing.T) {
	const h, m = time.Hour, time.Minute
	refused := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	for _, row := range []struct {
		name  string
		world func(*world)
		at    []time.Duration
		want  string
	}{
		{"not for long", nil, []time.Duration{h, 109 * m}, ""},
		{"a warns, once", nil, []time.Duration{110 * m, 111 * m, 119 * m}, warns},
		{"an eviction, once", nil, []time.Duration{110 * m, 120 * m, 121 * m, 122 * m}, warns + evicted},
		{"a use just before that time is still being measured", nil, []time.Duration{110 * m, 121*m - 1}, warns},
		{"the API server knows that a device is used", func(w *world) {
			w.server = func(c *resourceapi.ResourceClaim) {
				c.Status.Devices[0].Conditions[0].Status = metav1.ConditionFalse
			}
		}, []time.Duration{110 * m, 121 * m}, warns},
		{"or was so", func(w *world) {
			w.server = func(c *resourceapi.ResourceClaim) {
				c.Status.Devices[0].Conditions[0].LastTransitionTime.Time = start.Add(115 * m)
			}
		}, []time.Duration{110 * m, 121 * m}, warns},
		{"or that the claim is gone", func(w *world) { delete(w.claims, "first") },
			[]time.Duration{110 * m, 121 * m}, warns},
		{"a warning comes first, also if it is late", nil, []time.Duration{3 * h, 3*h + 10*m, 3*h + 11*m},
			strings.Replace(warns, "10:00:00", "11:10:00", 1) + evicted},
		{"no label", func(w *world) { w.label = "" }, []time.Duration{9 * h, 19 * h}, ""},
		{"a wrong label", func(w *world) { w.label = "long" }, []time.Duration{h, 9 * h, 19 * h}, "IdleGPU train: " +
			"has not used its GPUs since 2026-11-25T08:00:00Z, and is not evicted: the label " +
			"gpu.nvidia.com/idle-eviction=long of its namespace must be a time such as 30m or 2h"},
		{"a time that is none", func(w *world) { w.label = "0s" }, []time.Duration{9 * h, 19 * h}, "IdleGPU train: " +
			"has not used its GPUs since 2026-11-25T08:00:00Z, and is not evicted: the label " +
			"gpu.nvidia.com/idle-eviction=0s of its namespace must be a time such as 30m or 2h"},
		{"a claim that is used", func(w *world) { w.claim("first", time.Time{}, w.gpus[0]) },
			[]time.Duration{9 * h, 19 * h}, ""},
		{"a device of the claim that is used", func(w *world) {
			c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "first"}}
			c.Status.Allocation = &resourceapi.AllocationResult{}
			w.device(c, w.gpus[0], start)
			w.device(c, w.gpus[1], time.Time{})
			w.view.SetClaim(cluster.SlimClaim(c))
		}, []time.Duration{9 * h, 19 * h}, ""},
		{"another claim of the pod that is used", func(w *world) { w.claim("second", time.Time{}, w.gpus[1]) },
			[]time.Duration{9 * h, 19 * h}, ""},
		{"another claim of the pod that is idle for a shorter time", func(w *world) {
			w.claim("second", start.Add(h), w.gpus[1])
		}, []time.Duration{169 * m}, ""},
		{"another claim of the pod with a GPU over the network", func(w *world) {
			w.other("second", "remote."+clustertest.Driver)
		}, []time.Duration{9 * h, 19 * h}, ""},
		{"a GPU over the network in the claim", func(w *world) { w.other("first", "remote."+clustertest.Driver) },
			[]time.Duration{9 * h, 19 * h}, ""},
		{"another claim of the pod with a device of a third driver", func(w *world) {
			w.other("second", "nic.example.com")
		}, []time.Duration{110 * m, 121 * m}, warns + evicted},
		{"a device of a third driver in the claim", func(w *world) { w.other("first", "nic.example.com") },
			[]time.Duration{110 * m, 121 * m}, warns + evicted},
		{"the plugin of the node does not run", func(w *world) {
			for _, s := range clustertest.Slices(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}) {
				w.view.DeleteSlice(s.Name)
			}
		}, []time.Duration{9 * h, 19 * h}, ""},
		{"another pod of the name", func(w *world) { w.pod.UID = "other" }, []time.Duration{9 * h, 19 * h}, ""},
		{"a pod that has ended", func(w *world) { w.pod.Status.Phase = corev1.PodSucceeded },
			[]time.Duration{9 * h, 19 * h}, ""},
		{"a pod of a DaemonSet", func(w *world) {
			w.pod.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "d", Controller: ptr.To(true)}}
		}, []time.Duration{9 * h, 19 * h}, ""},
		{"the node has lost contact", func(w *world) { w.pod.Status.Conditions[0].Status = corev1.ConditionFalse },
			[]time.Duration{9 * h, 19 * h}, ""},
		{"a pod that was never ready", func(w *world) { w.pod.Status.Conditions = nil },
			[]time.Duration{9 * h, 19 * h}, ""},
		{"a static pod", func(w *world) { w.pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} },
			[]time.Duration{9 * h, 19 * h}, ""},
		{"a PodDisruptionBudget forbids it", func(w *world) { w.fails = refused }, []time.Duration{110 * m, 121 * m},
			warns + "\neviction train\npod ml/train: evict: " + refused.Error()},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t)
			if row.world != nil {
				row.world(w)
			}
			if got := w.after(row.at...); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
			if got, want := testutil.ToFloat64(w.evicted) > 0, strings.HasSuffix(row.want, evicted); got != want {
				t.Errorf("counted as evicted: got %t, want %t", got, want)
			}
		})
	}
}

// A pod that is used after the warning is warned again when it is idle again, and so is one under a new leader.
func TestWarnings(t *testing.T) {
	w := newWorld(t)
	w.after(110 * time.Minute)
	w.claim("first", time.Time{}, w.gpus[0])
	if got := w.after(3 * time.Hour); got != warns {
		t.Errorf("used again: got\n%s\nwant only the first warning", got)
	}
	w.claim("first", start.Add(2*time.Hour), w.gpus[0])
	w.did = nil
	again := strings.NewReplacer("08:00:00", "10:00:00", "10:00:00", "12:00:00").Replace(warns)
	if got := w.after(4*time.Hour - 10*time.Minute); got != again {
		t.Errorf("idle again: got\n%s\nwant\n%s", got, again)
	}
	w.lead()
	w.did = nil
	late := strings.Replace(again, "12:00:00", "12:09:00", 1)
	if got := w.after(4*time.Hour-time.Minute, 4*time.Hour+8*time.Minute); got != late {
		t.Errorf("a new leader: got\n%s\nwant\n%s", got, late)
	}
}

// After a short warning, the eviction is late by no more than the warning.
func TestShortWarning(t *testing.T) {
	w := newWorld(t)
	w.lead()
	w.warning = 3 * time.Second
	if got := w.after(2*time.Hour-3*time.Second, 2*time.Hour+2*time.Second); got != warns {
		t.Errorf("got\n%s\nwant\n%s", got, warns)
	}
	if got := w.after(2*time.Hour + 3*time.Second); got != warns+evicted {
		t.Errorf("got\n%s\nwant\n%s", got, warns+evicted)
	}
}

// Who corrects a label has a warning before the eviction, and so has who changes the time.
func TestChangedLabel(t *testing.T) {
	for _, before := range []string{"2hours", "1h"} {
		w := newWorld(t)
		w.label = before
		w.after(time.Hour)
		w.did = nil
		var n corev1.Namespace
		if err := w.direct.Get(t.Context(), client.ObjectKey{Name: "ml"}, &n); err != nil {
			t.Fatal(err)
		}
		n.Labels[Label] = "2h"
		if err := w.direct.Update(t.Context(), &n); err != nil {
			t.Fatal(err)
		}
		late := strings.Replace(warns, "10:00:00", "11:10:00", 1)
		if got := w.after(3 * time.Hour); got != late {
			t.Errorf("%s before: got\n%s\nwant\n%s", before, got, late)
		}
	}
}

// A pod that has just started is not evicted because the pod before has left the claim idle.
func TestNextPod(t *testing.T) {
	w := newWorld(t)
	w.pod.Status.StartTime = ptr.To(metav1.NewTime(start.Add(5 * time.Hour)))
	if got := w.after(6 * time.Hour); got != "" {
		t.Errorf("an hour after its start: got %s, want nothing", got)
	}
	want := strings.NewReplacer("08:00:00", "13:00:00", "10:00:00", "15:00:00").Replace(warns)
	if got := w.after(7*time.Hour - 10*time.Minute); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A pod that may not be evicted is not read at every look. Once it may be, it is warned soon, and so is one whose claim
// the API server knew to be used.
func TestSparedPod(t *testing.T) {
	w := newWorld(t)
	w.pod.Status.Conditions[0].Status = corev1.ConditionFalse
	var looks []time.Duration
	for m := range 19 { // half a minute between them
		looks = append(looks, 3*time.Hour+time.Duration(m)*maxPeriod)
	}
	if got := w.after(looks...); got != "" || w.reads != 1 {
		t.Errorf("got %q, and the pod was read %d times, want once", got, w.reads)
	}
	w.pod.Status.Conditions[0].Status = corev1.ConditionTrue
	w.lead() // with the changed pod
	w.spared[w.pod.UID] = start.Add(3*time.Hour + 10*time.Minute)
	late := strings.Replace(warns, "10:00:00", "11:20:00", 1)
	if got := w.after(3*time.Hour+9*time.Minute, 3*time.Hour+10*time.Minute); got != late {
		t.Errorf("got\n%s\nwant\n%s", got, late)
	}
}

// Nothing is asked of the API server while no claim is idle.
func TestNothingIsIdle(t *testing.T) {
	w := newWorld(t)
	w.claim("first", time.Time{}, w.gpus[0])
	w.evictor = &evictor{view: w.view} // a request would panic
	if got := w.after(9 * time.Hour); got != "" {
		t.Errorf("got %s, want nothing", got)
	}
}
