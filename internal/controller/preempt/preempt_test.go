// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/moves"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

var node = clustertest.SimNode{Name: "node-1", Profile: "t4-x2", Use: gpu.SharingMode{Sharing: gpu.Exclusive}}

const (
	first  = "gpu-3b-00-0" // the GPUs of the profile
	second = "gpu-af-00-0"
)

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

// world is a node, and what the controller writes.
type world struct {
	*Preemptor
	t      *testing.T
	node   clustertest.SimNode
	reads  *kubefake.Clientset
	now    time.Time
	writes []string
	evict  func(pod string) error
	asked  func(pod string) error // a dry run
	live   string                 // the node of the pod in answers of the API server
	patch  error                  // of the pod
	create error                  // of rules
	remove error                  // of rules
	broken bool                   // rounds may end with an error
}

// newWorld returns a node with two T4.
func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOf(t, node)
}

func newWorldOf(t *testing.T, node clustertest.SimNode) *world {
	t.Helper()
	w := &world{t: t, node: node, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		evict: func(string) error { return nil }, asked: func(string) error { return nil }}
	objects := []runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1",
		Labels: map[string]string{corev1.LabelHostname: "node-1"}}},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 10}}
	for _, s := range clustertest.Slices(t, node) {
		objects = append(objects, s)
	}
	for _, c := range clustertest.Classes(t) {
		objects = append(objects, c)
	}
	w.reads = kubefake.NewClientset(objects...)
	w.reads.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := a.(clienttesting.CreateAction)
		if !ok || a.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		eviction, ok := create.GetObject().(*policyv1.Eviction)
		if !ok || eviction.DeleteOptions.Preconditions.UID == nil {
			t.Error("an eviction without a UID may evict another pod of the name")
		}
		if len(eviction.DeleteOptions.DryRun) > 0 {
			return true, nil, w.asked(eviction.Name)
		}
		if err := w.evict(eviction.Name); err != nil {
			return true, nil, err
		}
		w.wrote("evict " + eviction.Name)
		w.change(eviction.Name, func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(w.now)) })
		return true, nil, nil
	})
	w.start()
	return w
}

// start starts a controller, as a new leader.
func (w *world) start() {
	store := map[string]*resourceapi.DeviceTaintRule{}
	if w.Preemptor != nil {
		var rules resourceapi.DeviceTaintRuleList
		if err := w.client.List(w.t.Context(), &rules); err != nil {
			w.t.Fatal(err)
		}
		for i := range rules.Items {
			rules.Items[i].ResourceVersion = ""
			store[rules.Items[i].Name] = &rules.Items[i]
		}
	}
	builder := fake.NewClientBuilder().WithScheme(scheme.Scheme)
	for _, rule := range store {
		builder = builder.WithObjects(rule)
	}
	writes := builder.WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			switch o := o.(type) {
			case *corev1.Event:
				w.wrote(fmt.Sprintf("event %s of %s: %s", o.Reason, o.InvolvedObject.Name, o.Message))
			case *resourceapi.DeviceTaintRule:
				if w.create != nil {
					return w.create
				}
				w.wrote(fmt.Sprintf("keep %s for %s", *o.Spec.DeviceSelector.Device, o.Spec.Taint.Value))
			}
			return c.Create(ctx, o, options...)
		},
		DeleteAllOf: func(ctx context.Context, c client.WithWatch, o client.Object,
			options ...client.DeleteAllOfOption) error {
			w.wrote("give back")
			if w.remove != nil {
				return w.remove
			}
			return c.DeleteAllOf(ctx, o, options...)
		},
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, o client.Object, p client.Patch,
			_ ...client.SubResourcePatchOption) error {
			data, err := p.Data(o)
			w.wrote(fmt.Sprintf("patch %s: %s", o.GetName(), data))
			if pod, ok := o.(*corev1.Pod); ok {
				pod.Spec.NodeName = w.live
			}
			return cmp.Or(w.patch, err)
		},
	}).Build()
	w.Preemptor = newPreemptor(&feature.Controller{View: clustertest.New(w.t, w.node),
		Known: func() error { return nil }, Direct: writes, Guard: feature.NewGuard()}, w.reads)
	if err := w.readHolds(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) wrote(text string) { w.writes = append(w.writes, text) }

// add adds a pod of that priority with a claim for a GPU. Without a device, it waits.
func (w *world) add(name string, priority int32, device string, changes ...func(*corev1.Pod)) {
	w.t.Helper()
	claim := clustertest.Claim(w.t, `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, tolerations:
		[{key: gpu.nvidia.com/preemption, operator: Equal, value: `+name+`, effect: NoSchedule}]}}]`)
	claim.Namespace, claim.Name, claim.UID = "ns", name, types.UID(name)
	claim.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: types.UID(name),
		Controller: ptr.To(true)}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name),
		Labels: map[string]string{"app": name}}, Spec: corev1.PodSpec{Priority: &priority,
		TerminationGracePeriodSeconds: ptr.To[int64](30), ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu",
			ResourceClaimTemplateName: ptr.To("gpu")}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{
			Name: "gpu", ResourceClaimName: &name}}, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
			Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}}}
	if device != "" {
		pod.Spec.NodeName = "node-1"
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: ptr.To(metav1.NewTime(w.now)),
			ResourceClaimStatuses: pod.Status.ResourceClaimStatuses}
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name,
			UID: types.UID(name)}}
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: clustertest.Driver,
				Pool: "node-1", Device: device}}}}
	}
	for _, change := range changes {
		change(pod)
	}
	for _, o := range []runtime.Object{claim, pod} {
		if err := w.reads.Tracker().Add(o); err != nil {
			w.t.Fatal(err)
		}
	}
}

// change changes a pod.
func (w *world) change(name string, change func(*corev1.Pod)) {
	w.t.Helper()
	pod := w.pod(name)
	change(pod)
	if err := w.reads.Tracker().Update(podResource, pod, "ns"); err != nil {
		w.t.Fatal(err)
	}
}

// pass runs rounds for that long, and returns what they have written.
func (w *world) pass(d time.Duration) string {
	w.t.Helper()
	w.writes = nil
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(period) {
		all, err := w.reads.CoreV1().Pods("").List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		var pods []*corev1.Pod
		for i := range all.Items {
			if all.Items[i].Spec.NodeName == "" {
				pods = append(pods, waiting.Slim(&all.Items[i]))
			}
		}
		if err := w.round(w.t.Context(), pods, w.now); err != nil && !w.broken {
			w.t.Fatal(err)
		}
	}
	return strings.Join(w.writes, "\n")
}

// nominated is what the scheduler and the API server make of the patch.
func nominated(p *corev1.Pod) { p.Status.NominatedNodeName = "node-1" }

const preempts = `keep gpu-af-00-0 for high
patch high: {"metadata":{"uid":"high"},"status":{"nominatedNodeName":"node-1"}}
event PreemptsForDevices of high: on node node-1, of lower priority: pod low
evict low
event PreemptedForDevices of low: by pod high of higher priority, on node node-1`

func TestPreemption(t *testing.T) {
	w := newWorld(t)
	w.add("middle", 5, first)
	w.add("low", 1, second)
	w.add("high", 10, "")
	if got := w.pass(settle - period); got != "" {
		t.Errorf("at once: got %s, want nothing", got)
	}
	if got := w.pass(2 * period); got != preempts {
		t.Errorf("got %s, want %s", got, preempts)
	}
	w.change("high", nominated)
	if got := w.pass(10 * time.Second); got != "" {
		t.Errorf("while the victim ends: got %s, want nothing", got)
	}
	w.change("high", func(p *corev1.Pod) { p.Status.NominatedNodeName = "" })
	const again = `patch high: {"metadata":{"uid":"high"},"status":{"nominatedNodeName":"node-1"}}`
	if got := w.pass(period); got != again {
		t.Errorf("the scheduler clears the node: got %s, want %s", got, again)
	}
	w.change("high", func(p *corev1.Pod) { p.Spec.NodeName = "node-1" })
	if got := w.pass(time.Minute); got != "give back" {
		t.Errorf("with a node: got %s, want the devices given back", got)
	}
	if one, other := testutil.ToFloat64(w.preemptions), testutil.ToFloat64(w.preempted); one != 1 || other != 1 {
		t.Errorf("got %v preemptions of %v pods, want one each", one, other)
	}
}

// An event in the namespace of a victim does not tell by what the devices are kept.
func TestEventWithoutUID(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first)
	h := &hold{uid: "secret", Namespace: "other", Pod: "name", Node: "node-1", Victims: []victim{{"ns", "low", "low"}}}
	const want = "by a pod of another namespace of higher priority"
	err := w.Preemptor.evict(t.Context(), h, w.now)
	if got := strings.Join(w.writes, "\n"); err != nil || !strings.Contains(got, want) ||
		strings.Contains(got, "secret") {
		t.Errorf("got %s, %v, want %q without a UID", got, err, want)
	}
}

// Each of these leaves the pod low alone.
func TestNoPreemption(t *testing.T) {
	for _, row := range []struct {
		name string
		high func(*corev1.Pod)
		add  runtime.Object
	}{
		{"its class says so", func(p *corev1.Pod) { p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) }, nil},
		{"the same priority", func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](1) }, nil},
		{"the scheduler preempts for it", nominated, nil},
		{"it has a gate", func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x"}}
		}, nil},
		{"it is of a group", func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{} }, nil},
		{"it has not been tried", func(p *corev1.Pod) { p.Status.Conditions = nil }, nil},
		{"it asks for no device", func(p *corev1.Pod) { p.Spec.ResourceClaims = nil }, nil},
		{"its claim is not generated", func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = nil }, nil},
		{"its volume is not bound", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.
				PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		}, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}}},
		{"it is of another scheduler", func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }, nil},
		{"it is of a gang of Coscheduling", func(p *corev1.Pod) {
			p.Labels["scheduling.x-k8s.io/pod-group"] = "gang"
		}, nil},
		{"it is of a gang of Volcano", func(p *corev1.Pod) {
			p.Annotations = map[string]string{"scheduling.k8s.io/group-name": "gang"}
		}, nil},
		{"it has to be spread among pods", spread(&metav1.LabelSelector{}, corev1.LabelHostname), nil},
		{"it has to be spread over a label that the node lacks", spread(nil, "zone"), nil},
		{"it needs to be near another pod", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "x"}}}}
		}, nil},
		{"a budget forbids it", nil, &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "low"}, Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "low"}}}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t)
			w.add("low", 1, first)
			w.add("other", 20, second)
			high := row.high
			if high == nil {
				high = func(*corev1.Pod) {}
			}
			w.add("high", 10, "", high)
			if row.add != nil {
				if err := w.reads.Tracker().Add(row.add); err != nil {
					t.Fatal(err)
				}
			}
			if got := w.pass(2 * time.Minute); got != "" {
				t.Errorf("got %s, want nothing", got)
			}
		})
	}
}

func spread(among *metav1.LabelSelector, over string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1000, TopologyKey: over,
			WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: among}}
	}
}

// The chart's policy for namespaces with gpu.nvidia.com/default-spreading=off adds a constraint that selects no pods.
func TestSpreadingWithoutPods(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first)
	w.add("other", 20, second)
	w.add("high", 10, "", spread(nil, corev1.LabelHostname))
	if got := w.pass(settle + period); !strings.Contains(got, "evict low") {
		t.Errorf("got %s, want an eviction", got)
	}
}

// A pod waits for the pod that has its volume alone, and evicts nobody meanwhile.
func TestReadWriteOncePod(t *testing.T) {
	w := newWorld(t)
	volume := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	}
	w.add("low", 1, first)
	w.add("other", 20, second)
	w.add("user", 20, "", volume, func(p *corev1.Pod) { p.Spec.NodeName = "node-1" })
	w.add("high", 10, "", volume)
	for _, o := range []runtime.Object{
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv", AccessModes: []corev1.PersistentVolumeAccessMode{
				corev1.ReadWriteOncePod}}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}},
	} {
		if err := w.reads.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.pass(5 * time.Minute); got != "" {
		t.Errorf("another pod has its volume: got %s, want nothing", got)
	}
	w.change("user", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	if got := w.pass(maxPause + readPause); !strings.Contains(got, "evict low") {
		t.Errorf("the volume is free: got %s, want an eviction", got)
	}
}

// A pod with an extended resource has no claim whose devices could be kept before it has a node.
func TestExtendedResource(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first)
	w.add("other", 20, second)
	w.add("high", 10, "", func(p *corev1.Pod) {
		p.Spec.ResourceClaims, p.Status.ResourceClaimStatuses = nil, nil
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			"nvidia.com/gpu": resource.MustParse("1")}}}}
	})
	if got := w.pass(settle + period); !strings.Contains(got, "evict low") || strings.Contains(got, "keep") {
		t.Errorf("got %s, want an eviction, and no device kept", got)
	}
}

// A pod that lacks only devices of another driver is left to that driver.
func TestOtherDriver(t *testing.T) {
	const nic = "nic.example.com"
	w := newWorld(t)
	w.add("low", 1, first)
	w.add("high", 10, "")
	for _, name := range []string{"low", "high"} {
		claims := resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
		o, err := w.reads.Tracker().Get(claims, "ns", name)
		claim, ok := o.(*resourceapi.ResourceClaim)
		if err != nil || !ok {
			t.Fatal(o, err)
		}
		claim.Spec.Devices.Requests[0].Exactly.DeviceClassName = nic
		if a := claim.Status.Allocation; a != nil {
			a.Devices.Results[0].Driver, a.Devices.Results[0].Device = nic, "nic-0"
		}
		if err := w.reads.Tracker().Update(claims, claim, "ns"); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []runtime.Object{
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: nic}, Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: "device.driver == '" + nic + "'"}}}}},
		&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: nic}, Spec: resourceapi.ResourceSliceSpec{
			Driver: nic, NodeName: ptr.To("node-1"), Devices: []resourceapi.Device{{Name: "nic-0"}},
			Pool: resourceapi.ResourcePool{Name: "node-1", ResourceSliceCount: 1}}},
	} {
		if err := w.reads.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.pass(settle + period); got != "" {
		t.Errorf("got %s, want nothing", got)
	}
}

// Two pods that wait at the same time get a GPU each.
func TestTwoPreemptors(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first)
	w.add("lower", 0, second)
	w.add("high", 10, "")
	w.add("higher", 11, "")
	got := w.pass(settle + period)
	for _, want := range []string{"keep " + second + " for higher", "keep " + first + " for high\n", "evict lower",
		"evict low\n"} {
		if !strings.Contains(got+"\n", want) {
			t.Errorf("got %s, want %q", got, want)
		}
	}
}

// Where a budget forbids the end of one victim, no other one is evicted. Those with a budget are the first.
func TestSeveralVictims(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first)
	w.add("lower", 0, second)
	w.add("high", 10, "")
	claims := resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
	o, err := w.reads.Tracker().Get(claims, "ns", "high")
	claim, ok := o.(*resourceapi.ResourceClaim)
	if err != nil || !ok {
		t.Fatal(o, err)
	}
	claim.Spec.Devices.Requests[0].Exactly.Count = 2
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lower"},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{
			"app": "lower"}}}, Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1}}
	if err := errors.Join(w.reads.Tracker().Update(claims, claim, "ns"), w.reads.Tracker().Add(budget)); err != nil {
		t.Fatal(err)
	}
	w.asked = func(pod string) error {
		if pod == "low" {
			return budgetForbids()
		}
		return nil
	}
	if got := w.pass(settle + period); got != "" {
		t.Errorf("one is refused: got %s, want nothing", got)
	}
	w.asked = func(string) error { return nil }
	if got := w.pass(firstPause); !strings.Contains(got, "evict lower\n") || !strings.Contains(got, "evict low\n") ||
		strings.Index(got, "evict low\n") < strings.Index(got, "evict lower\n") {
		t.Errorf("got %s, want both evicted, the one with a budget first", got)
	}
}

// budgetForbids returns what the API server answers.
func budgetForbids() error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
	return err
}

// A budget that forbids the eviction meanwhile, or a pod that is deleted, gives the devices back.
func TestGivenBack(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first)
	w.add("other", 20, second)
	w.add("high", 10, "")
	w.evict = func(string) error { return budgetForbids() }
	if got := w.pass(settle + period); !strings.HasSuffix(got, "\ngive back") || strings.Contains(got, "evict low") {
		t.Errorf("a budget forbids it: got %s, want the devices given back", got)
	}
	w.evict = func(string) error { return nil }
	if got := w.pass(firstPause); !strings.Contains(got, "evict low") {
		t.Errorf("the budget allows it again: got %s, want an eviction", got)
	}
	w.change("high", func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(w.now)) })
	if got := w.pass(period); got != "give back" {
		t.Errorf("the pod goes away: got %s, want the devices given back", got)
	}
}

// Nobody is evicted for a pod that has got a node meanwhile, or is gone, or whose devices cannot be kept. What is kept
// is given back, also if that fails at first.
func TestAbandoned(t *testing.T) {
	broken := apierrors.NewInternalError(context.DeadlineExceeded)
	pods := corev1.Resource("pods")
	for _, row := range []struct {
		name    string
		prepare func(*world)
	}{
		{"the pod has a node", func(w *world) { w.live = "node-2" }},
		{"the pod is gone", func(w *world) { w.patch = apierrors.NewNotFound(pods, "high") }},
		{"another pod has its name", func(w *world) {
			w.patch = apierrors.NewConflict(pods, "high", errors.New("another UID"))
		}},
		{"the rule is refused", func(w *world) { w.create, w.remove, w.broken = broken, broken, true }},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t)
			w.add("low", 1, first)
			w.add("other", 20, second)
			w.add("high", 10, "")
			row.prepare(w)
			if got := w.pass(settle + period); strings.Contains(got, "evict") || !strings.HasSuffix(got, "give back") {
				t.Errorf("got %s, want nobody evicted, and the devices given back", got)
			}
			again := w.remove != nil
			w.remove = nil
			if got := w.pass(period); strings.Contains(got, "evict") || strings.Contains(got, "give back") != again {
				t.Errorf("later: got %s, want the devices given back again: %t", got, again)
			}
		})
	}
}

// A rule that an attempt has left, perhaps for another device, is not taken for a new one.
func TestLeftRule(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first)
	w.add("other", 20, second)
	w.add("high", 10, "")
	left := (&hold{uid: "high"}).rules(&moves.Preemption{Hold: []structured.DeviceID{structured.MakeDeviceID(
		clustertest.Driver, "node-1", second)}})[0]
	if err := w.client.Create(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	w.broken = true
	if got := w.pass(settle + period); strings.Contains(got, "evict") {
		t.Errorf("with a rule that was left: got %s, want nobody evicted", got)
	}
	if got := w.pass(2 * firstPause); !strings.Contains(got, "evict low") {
		t.Errorf("later: got %s, want an eviction", got)
	}
	var rules resourceapi.DeviceTaintRuleList
	if err := w.client.List(t.Context(), &rules); err != nil || len(rules.Items) != 1 ||
		*rules.Items[0].Spec.DeviceSelector.Device != first {
		t.Errorf("got %+v, %v, want one rule, for the device of the plan", rules.Items, err)
	}
}

// What fails is not tried in each round.
func TestFailures(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first)
	w.add("other", 20, second)
	w.add("high", 10, "")
	w.broken = true
	tries := 0
	w.evict = func(string) error {
		tries++
		return apierrors.NewInternalError(context.DeadlineExceeded)
	}
	if w.pass(settle + 10*time.Second); tries < 2 || tries > 8 {
		t.Errorf("got %d evictions in ten seconds that fail, want a few", tries)
	}
	w.evict = func(string) error { return nil }
	if got := w.pass(10 * time.Second); !strings.Contains(got, "evict low") {
		t.Errorf("got %s, want an eviction", got)
	}
}

// A rule that names a pod of a higher priority as a victim does not let it be evicted.
func TestForgedRule(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first)
	w.add("other", 20, second)
	w.add("high", 10, "", func(p *corev1.Pod) { p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) })
	h := &hold{uid: "high", Namespace: "ns", Pod: "high", Node: "node-1", Until: w.now.Add(keeps), Victims: []victim{
		{"ns", "other", "other"}, {"ns", "low", "low"}}}
	rule := h.rules(&moves.Preemption{Hold: []structured.DeviceID{structured.MakeDeviceID(clustertest.Driver, "node-1",
		first)}})[0]
	if err := w.client.Create(t.Context(), rule); err != nil {
		t.Fatal(err)
	}
	w.start()
	if got := w.pass(period); strings.Contains(got, "evict other") || !strings.Contains(got, "evict low") {
		t.Errorf("got %s, want the pod low evicted only", got)
	}
}

// A pod that does not use its devices loses them a minute after its victims should have ended, and does not preempt
// again at once.
func TestNotUsed(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first)
	w.add("other", 1, second)
	w.add("high", 10, "")
	w.pass(settle + period)
	w.change("high", nominated)
	if got := w.pass(keeps + 29*time.Second); got != "" {
		t.Errorf("got %s, want nothing", got)
	}
	const want = `event PreemptionNotUsed of high: pods were evicted on node node-1, and the pod is still on no node
patch high: {"metadata":{"annotations":{"gpu.nvidia.com/preemption-pause":"10m0s until 2026-01-02T03:15:36Z"},` +
		`"uid":"high"},"status":{"nominatedNodeName":""}}
give back`
	if got := w.pass(2 * time.Second); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	w.change("high", func(p *corev1.Pod) { p.Status.NominatedNodeName = "" })
	w.change("low", func(p *corev1.Pod) { p.DeletionTimestamp = nil })
	if got := w.pass(unused - time.Minute); got != "" {
		t.Errorf("got %s, want nothing", got)
	}
	if got := w.pass(2 * time.Minute); !strings.Contains(got, "evict") {
		t.Errorf("got %s, want another preemption", got)
	}
}

// The minute begins when the victims are gone, and not when the longest time that they may take is over.
func TestVictimsAreGone(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](3600) })
	w.add("other", 20, second)
	w.add("high", 10, "")
	w.pass(settle + period)
	w.change("high", nominated)
	if got := w.pass(2 * keeps); got != "" {
		t.Errorf("the victim ends: got %s, want nothing", got)
	}
	if err := w.reads.Tracker().Delete(podResource, "ns", "low"); err != nil {
		t.Fatal(err)
	}
	if got := w.pass(keeps); got != "" {
		t.Errorf("the victim is gone: got %s, want nothing for a minute", got)
	}
	if got := w.pass(looks + period); !strings.HasSuffix(got, "give back") {
		t.Errorf("a minute later: got %s, want the devices given back", got)
	}
}

// An owner whose pods do not use what they preempt waits longer each time, also if they are replaced, and after a
// restart of the controller.
func TestPauses(t *testing.T) {
	w := newWorld(t)
	of := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", UID: "rs", Controller: ptr.To(true)}}
	}
	w.add("low", 1, first)
	w.add("other", 20, second)
	var owner types.UID
	for i, want := range []time.Duration{unused, 2 * unused, 4 * unused} {
		name := fmt.Sprint("high-", i)
		w.add(name, 10, "", of)
		owner = ownerOf(waiting.Slim(w.pod(name)))
		if got := w.pass(settle + period); !strings.Contains(got, "evict low") {
			t.Fatalf("%s: got %s, want an eviction", name, got)
		}
		w.change("low", func(p *corev1.Pod) { p.DeletionTimestamp = nil })
		if i == 1 { // the pod goes away unused
			if err := w.reads.Tracker().Delete(podResource, "ns", name); err != nil {
				t.Fatal(err)
			}
			w.pass(period)
		} else {
			w.pass(keeps + 31*time.Second)
		}
		p := w.pauses[owner]
		if p == nil || p.length != want {
			t.Fatalf("%s: got the pause %v, want %v", name, p, want)
		}
		w.now = p.until
		if i == 1 {
			continue
		}
		w.now = p.until.Add(-time.Second)
		w.change(name, func(pod *corev1.Pod) {
			pod.Status.NominatedNodeName = ""
			pod.Annotations = map[string]string{waiting.PauseAnnotation: p.String()} // what the patch does
		})
		w.start()
		if got := w.pass(time.Second); got != "" {
			t.Errorf("%s: a new leader: got %s, want nothing in the pause", name, got)
		}
		if p := w.pauses[owner]; p == nil || p.length != want {
			t.Errorf("%s: a new leader: got the pause %v, want %v", name, p, want)
		}
		if err := w.reads.Tracker().Delete(podResource, "ns", name); err != nil {
			t.Fatal(err)
		}
	}
	w.add("high-3", 10, "", of)
	w.pass(settle + period)
	w.change("high-3", func(p *corev1.Pod) { p.Spec.NodeName = "node-1" })
	w.pass(period)
	if p := w.pauses[owner]; p != nil {
		t.Errorf("a pod uses its devices: got the pause %v, want none", p)
	}
}

// A leader that ends before it has evicted leaves the rules. The next one goes on.
func TestNextLeader(t *testing.T) {
	w := newWorld(t)
	w.add("low", 1, first)
	w.add("other", 20, second)
	w.add("high", 10, "")
	down := true
	w.evict = func(string) error {
		if down {
			return apierrors.NewInternalError(context.DeadlineExceeded)
		}
		return nil
	}
	w.writes = nil
	w.now = w.now.Add(settle)
	pods := []*corev1.Pod{waiting.Slim(w.pod("high"))}
	_ = w.round(t.Context(), pods, w.now)
	err := w.round(t.Context(), pods, w.now.Add(settle))
	if err == nil || !strings.Contains(err.Error(), "evict pod ns/low") {
		t.Fatalf("got %v, want an eviction that fails", err)
	}
	down = false
	w.start()
	want := "evict low\nevent PreemptedForDevices of low: by pod high of higher priority, on node node-1\n" +
		`patch high: {"metadata":{"uid":"high"},"status":{"nominatedNodeName":"node-1"}}`
	if got := w.pass(period); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	w.change("high", func(p *corev1.Pod) { p.Spec.NodeName = "node-1" })
	if got := w.pass(period); got != "give back" {
		t.Errorf("got %s, want the devices given back", got)
	}
}

// Pods of one owner are alike: where one cannot preempt, no other one is tried. A round in vain is not repeated at
// once, although there are pods that it has not looked at.
func TestPodsOfOneOwner(t *testing.T) {
	for _, row := range []struct {
		kind   string
		looked int // at pods in the first round
	}{{"ReplicaSet", maxPlans + 5}, {"DaemonSet", maxPlans}} {
		t.Run(row.kind, func(t *testing.T) {
			w := newWorld(t)
			w.add("a", 20, first)
			w.add("b", 20, second)
			for i := range maxPlans + 5 {
				w.add(fmt.Sprint("high-", i), 10, "", func(p *corev1.Pod) {
					p.OwnerReferences = []metav1.OwnerReference{{Kind: row.kind, UID: "o",
						Controller: ptr.To(true)}}
					if row.kind == "DaemonSet" { // its pods are for a node each
						p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: fmt.Sprint("node-", 2+i)}
					}
				})
			}
			if got := w.pass(settle + period); got != "" {
				t.Errorf("got %s, want nothing", got)
			}
			looked := func() (n int) {
				for _, of := range w.waiting {
					n += min(1, of.tries)
				}
				return n
			}
			if got := looked(); got != row.looked {
				t.Errorf("got %d pods looked at, want %d", got, row.looked)
			}
			w.pass(readPause - 2*period)
			if got := looked(); got != row.looked {
				t.Errorf("within %v: got %d pods looked at, want %d", readPause, got, row.looked)
			}
			w.pass(maxPlans * period)
			if got := looked(); got != maxPlans+5 {
				t.Errorf("later: got %d pods looked at, want all", got)
			}
		})
	}
}

// Once plans have taken long, the next round goes on with the other pods, and what was begun is looked after before.
func TestLongPlans(t *testing.T) {
	w := newWorld(t)
	w.planning = 0
	w.add("low", 1, first)
	w.add("other", 20, second)
	for _, name := range []string{"a", "b"} {
		w.add(name, 11, "", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"x": "y"} })
	}
	w.add("high", 11, "")
	for _, want := range []bool{false, false, true} {
		if got := w.pass(readPause + period); strings.Contains(got, "evict low") != want {
			t.Errorf("got %s, want an eviction: %t", got, want)
		}
	}
}

// A pod that waits in a cluster without priorities costs one list of the classes a minute.
func TestLowestPriority(t *testing.T) {
	w := newWorld(t)
	w.add("a", 0, first)
	w.add("b", 0, second)
	w.add("c", 0, "")
	w.reads.ClearActions()
	for range 240 {
		_ = w.round(t.Context(), []*corev1.Pod{waiting.Slim(w.pod("c"))}, w.now)
		w.now = w.now.Add(period)
	}
	lists := 0
	for _, a := range w.reads.Actions() {
		switch {
		case a.GetVerb() == "list" && a.GetResource().Resource == "priorityclasses":
			lists++
		case a.GetVerb() == "list":
			t.Errorf("got a list of %s, want none", a.GetResource().Resource)
		}
	}
	if lists != 1 {
		t.Errorf("got %d lists of the classes in a minute, want 1", lists)
	}
}

func (w *world) pod(name string) *corev1.Pod {
	w.t.Helper()
	o, err := w.reads.Tracker().Get(podResource, "ns", name)
	pod, ok := o.(*corev1.Pod)
	if err != nil || !ok {
		w.t.Fatal(o, err)
	}
	return pod.DeepCopy()
}
