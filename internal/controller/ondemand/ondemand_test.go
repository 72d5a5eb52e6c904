// SPDX-License-Identifier: Apache-2.0

package ondemand

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

var requests = types.NamespacedName{Namespace: "gpu-dra-driver", Name: "partition-requests"}

// world is nodes of eight H100, and the ConfigMap.
type world struct {
	*asker
	t      *testing.T
	writes client.Client
	pods   []*corev1.Pod
	now    time.Time
	start  time.Time
}

func newWorld(t *testing.T, nodes int, use gpu.Partitions) *world {
	t.Helper()
	var all []clustertest.SimNode
	for i := range nodes {
		all = append(all, clustertest.SimNode{Name: fmt.Sprint("node-", i+1), Profile: "dgx-h100",
			Use: gpu.SharingMode{Partitions: use}})
	}
	w := &world{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		writes: fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: requests.Namespace, Name: requests.Name}}).Build()}
	w.start = w.now
	w.asker = newAsker(&feature.Controller{View: clustertest.New(t, all...), Direct: w.writes,
		Guard: feature.NewGuard()}, requests)
	return w
}

// add adds a pod with a claim that the scheduler has refused.
func (w *world) add(name, claim string, changes ...func(*corev1.Pod)) {
	w.t.Helper()
	c := clustertest.Claim(w.t, claim)
	c.Namespace, c.Name, c.UID = "ns", name, types.UID("claim-"+name)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{{Name: "main"}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To(name)}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}}}
	for _, change := range changes {
		change(pod)
	}
	w.View.SetClaim(cluster.SlimClaim(c))
	w.pods = append(w.pods, pod)
}

// holdWithheld lets claims hold all GPUs of the node as a whole whose partitions are not published.
func (w *world) holdWithheld(node string) {
	w.t.Helper()
	var withheld []*cluster.GPU
	for g := range w.View.GPUs {
		if g.Node == node && g.Whole != nil && len(g.Partitions) == 0 {
			withheld = append(withheld, g)
		}
	}
	if len(withheld) != 7 {
		w.t.Fatalf("got %d GPUs without published partitions, want 7", len(withheld))
	}
	for _, g := range withheld {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: g.Pool + g.Name}}
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: clustertest.Driver,
				Pool: g.Pool, Device: g.Name}}}}
		w.View.SetClaim(c)
	}
}

// asked makes rounds, and returns when which nodes were named.
func (w *world) asked(during time.Duration) string {
	w.t.Helper()
	var all []string
	version := ""
	for end := w.now.Add(during); !w.now.After(end); w.now = w.now.Add(period) {
		if err := w.round(w.t.Context(), w.pods, w.now); err != nil {
			w.t.Fatal(err)
		}
		var c corev1.ConfigMap
		if err := w.writes.Get(w.t.Context(), requests, &c); err != nil {
			w.t.Fatal(err)
		}
		if version != "" && c.ResourceVersion != version {
			all = append(all, fmt.Sprintf("%s: %s", w.now.Sub(w.start), c.Data[inventory.RequestedNodes]))
		}
		version = c.ResourceVersion
	}
	return strings.Join(all, ", ")
}

// partition asks for so many partitions of a profile.
func partition(count int, profile string) string {
	return fmt.Sprintf(`requests: [{name: gpu, exactly: {deviceClassName: mig.nvidia.com, count: %d, selectors: [{cel:
  {expression: "device.attributes['gpu.nvidia.com'].profile == '%s'"}}]}}]`, count, profile)
}

// first asks for a partition of the first GPU of a node, whose partitions are not published.
const first = `requests: [{name: gpu, exactly: {deviceClassName: mig.nvidia.com, selectors: [{cel:
  {expression: "device.attributes['gpu.nvidia.com'].index == 0"}}]}}]`

func TestRound(t *testing.T) {
	const both = "2s: node-1, 4s: node-1 node-2"
	for _, row := range []struct {
		name, claim string
		use         gpu.Partitions
		change      func(*corev1.Pod)
		asked       string
	}{
		{"a GPU whose partitions are not published", first, gpu.PartitionsOnDemand, nil, both},
		{"partitions of all GPUs", partition(8, "7g.80gb"), gpu.PartitionsOnDemand, nil, both},
		{"a partition of a certain profile of all GPUs but one", partition(7, "7g.80gb"), gpu.PartitionsOnDemand, nil,
			both},
		{"a GPU by a selector that is too long to be known", strings.ReplaceAll(first, "== 0", "in ["+
			strings.Repeat("12345678, ", 400)+"0]"), gpu.PartitionsOnDemand, nil, both},
		{"what is published is enough", partition(1, "1g.10gb"), gpu.PartitionsOnDemand, nil, ""},
		{"another scheduler, which may place several at once", partition(1, "1g.10gb"), gpu.PartitionsOnDemand,
			func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }, both},
		{"pods that are scheduled together", partition(1, "7g.80gb"), gpu.PartitionsOnDemand, func(p *corev1.Pod) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{}
		}, both},
		{"an extended resource of a class", "{}", gpu.PartitionsOnDemand, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				"deviceclass.resource.kubernetes.io/mig.nvidia.com": resource.MustParse("8")}
		}, both},
		{"more than a node has", partition(9, "7g.80gb"), gpu.PartitionsOnDemand, nil, ""},
		{"all are published", first, gpu.PartitionsDynamic, nil, ""},
		{"no node has partitions", first, gpu.PartitionsNone, nil, ""},
		{"a whole GPU", `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 8}}]`,
			gpu.PartitionsOnDemand, nil, ""},
		{"no scheduler has refused it yet", first, gpu.PartitionsOnDemand, func(p *corev1.Pod) {
			p.Status.Conditions = nil
		}, ""},
		{"it has a gate", first, gpu.PartitionsOnDemand, func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x"}}
		}, ""},
		{"its claim is not there", first, gpu.PartitionsOnDemand, func(p *corev1.Pod) {
			p.Spec.ResourceClaims[0].ResourceClaimName = ptr.To("other")
		}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, 2, row.use)
			change := row.change
			if change == nil {
				change = func(*corev1.Pod) {}
			}
			w.add("pod", row.claim, change)
			if got := w.asked(2 * pause); got != row.asked {
				t.Errorf("got %q named, want %q", got, row.asked)
			}
		})
	}
}

// Twice as many nodes are asked each time, and equal pods count once, so that none keeps another one waiting.
func TestMoreNodes(t *testing.T) {
	w := newWorld(t, 5, gpu.PartitionsOnDemand)
	for i := range 50 {
		w.add(fmt.Sprint("pod-", i), first)
	}
	if got, want := w.asked(4*pause), "2s: node-1, 4s: node-1 node-2, 6s: node-1 node-2 node-3 node-4, "+
		"8s: node-1 node-2 node-3 node-4 node-5"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(w.waiting) != 1 {
		t.Errorf("got %d shapes of equal pods, want 1", len(w.waiting))
	}
	w.add("other", partition(2, "7g.80gb"))
	w.add("fits", partition(1, "7g.80gb"))
	w.start = w.now
	if got, want := w.asked(pause), "1s: node-1 node-2 node-3 node-4 node-5, 2s: node-1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	w.pods = nil
	if got := w.asked(pause); got != "" || len(w.waiting) > 0 {
		t.Errorf("no pod waits: got %q named, and %d shapes remembered", got, len(w.waiting))
	}
}

// Only nodes are asked that have something to give.
func TestWithheld(t *testing.T) {
	w := newWorld(t, 3, gpu.PartitionsOnDemand)
	w.add("pod", first)
	w.holdWithheld("node-1")
	if got, want := w.asked(2*pause), "2s: node-2, 4s: node-2 node-3"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	w.holdWithheld("node-2")
	w.holdWithheld("node-3")
	if got := w.asked(2 * pause); got != "" || len(w.waiting) > 0 {
		t.Errorf("no GPU is left: got %q named, and %d shapes remembered", got, len(w.waiting))
	}
}

func TestManyNodes(t *testing.T) {
	w := newWorld(t, most+1, gpu.PartitionsOnDemand)
	w.add("pod", first)
	w.asked(10 * pause)
	var c corev1.ConfigMap
	if err := w.writes.Get(t.Context(), requests, &c); err != nil {
		t.Fatal(err)
	}
	if got := len(strings.Fields(c.Data[inventory.RequestedNodes])); got != most {
		t.Errorf("got %d nodes in a request, want %d", got, most)
	}
}

// What users ask for is bounded.
func TestManyShapes(t *testing.T) {
	w := newWorld(t, 1, gpu.PartitionsOnDemand)
	for i := range maxShapes + 5 {
		w.add(fmt.Sprint("pod-", i), strings.ReplaceAll(first, "== 0", fmt.Sprint("== ", i)))
	}
	if err := w.note(w.pods, w.now); err != nil || len(w.waiting) != maxShapes {
		t.Errorf("got %d shapes and %v, want %d", len(w.waiting), err, maxShapes)
	}
}

func TestNoConfigMap(t *testing.T) {
	w := newWorld(t, 1, gpu.PartitionsOnDemand)
	w.add("pod", first)
	w.asked(pause - period)
	if err := w.writes.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: requests.Namespace, Name: requests.Name}}); err != nil {
		t.Fatal(err)
	}
	err := w.round(t.Context(), w.pods, w.now)
	if err == nil || !strings.Contains(err.Error(), requests.String()) {
		t.Errorf("got %v, want an error that names the ConfigMap", err)
	}
}
