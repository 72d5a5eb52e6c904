// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/guard"
	"github.com/gpudra/gpu-dra-driver/internal/why"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// waitingCluster is one node with two whole GPUs, of which a claim of another namespace holds one.
type waitingCluster struct {
	*kubefake.Clientset
	view    *cluster.View
	events  client.Client
	creates int // of events
	now     time.Time
}

func newWaitingCluster(t testing.TB, objects ...runtime.Object) *waitingCluster {
	t.Helper()
	one := clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: gpu.SharingMode{Sharing: gpu.Exclusive}}
	c := &waitingCluster{view: clustertest.New(t, one), now: time.Now()}
	objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: one.Name},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"pods": resource.MustParse("5000")}}})
	var device string
	for _, s := range clustertest.Slices(t, one) {
		objects = append(objects, s)
		for _, d := range s.Spec.Devices {
			if ptr.Deref(d.Attributes["type"].StringValue, "") == "gpu" {
				device = d.Name
			}
		}
	}
	for _, class := range clustertest.Classes(t) {
		objects = append(objects, class)
	}
	holder := clustertest.Claim(t, `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]`)
	holder.Namespace, holder.Name, holder.UID = "others", "secret-project", "holder"
	holder.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: clustertest.Driver, Pool: "a",
			Device: device}}}}
	objects = append(objects, holder)
	c.Clientset = kubefake.NewClientset(objects...)
	for _, o := range objects {
		if claim, ok := o.(*resourceapi.ResourceClaim); ok {
			c.view.SetClaim(cluster.SlimClaim(claim))
		}
	}
	c.events = fake.NewClientBuilder().WithScheme(scheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, to client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			c.creates++
			return to.Create(ctx, o, opts...)
		}}).Build()
	return c
}

// reporter returns that of a new leader.
func (c *waitingCluster) reporter() *Waiting {
	return NewWaiting(&feature.Controller{Direct: c.events, View: c.view, Guard: feature.NewGuard()}, c.Clientset,
		time.Minute)
}

// report makes a round with the pods without a node.
func (c *waitingCluster) report(ctx context.Context, u *Waiting, now time.Time) error {
	all, err := c.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"),
		corev1.SchemeGroupVersion.WithKind("Pod"), "")
	if err != nil {
		return err
	}
	var pods []*corev1.Pod
	for _, pod := range all.(*corev1.PodList).Items {
		if pod.Spec.NodeName == "" {
			pods = append(pods, waiting.Slim(&pod))
		}
	}
	return u.Report(ctx, pods, now)
}

// told returns the events, sorted.
func (c *waitingCluster) told(t testing.TB) []string {
	t.Helper()
	var events corev1.EventList
	if err := c.events.List(t.Context(), &events); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range events.Items {
		all = append(all, fmt.Sprintf("%s/%s %s %s: %s", e.Namespace, e.InvolvedObject.Name, e.Type, e.Reason,
			e.Message))
	}
	slices.Sort(all)
	return all
}

// lists counts the lists of each resource.
func (c *waitingCluster) lists() map[string]int {
	all := map[string]int{}
	for _, a := range c.Actions() {
		if a.GetVerb() == "list" {
			all[a.GetResource().Resource]++
		}
	}
	return all
}

// oldClaim returns a claim that is two minutes old.
func oldClaim(t testing.TB, namespace, name, devices string) *resourceapi.ResourceClaim {
	t.Helper()
	claim := clustertest.Claim(t, devices)
	claim.Namespace, claim.Name, claim.UID = namespace, name, types.UID(namespace+"-"+name)
	claim.CreationTimestamp = metav1.NewTime(time.Now().Add(-2 * time.Minute))
	return claim
}

// podOf returns a pod of that age that the scheduler has not placed.
func podOf(age time.Duration, claims ...*resourceapi.ResourceClaim) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: claims[0].Namespace, Name: "pod-" + claims[0].Name,
		UID: "pod-" + claims[0].UID, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}}}
	for _, claim := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim.Name,
			ResourceClaimName: &claim.Name})
		use := &pod.Spec.Containers[0].Resources.Claims
		*use = append(*use, corev1.ResourceClaim{Name: claim.Name})
	}
	return pod
}

const (
	threeGPUs = `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 3}}]`
	twoGPUs   = `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}]`
)

func TestWaiting(t *testing.T) {
	const age = 2 * time.Minute
	claims := map[string]*resourceapi.ResourceClaim{}
	for _, name := range []string{"three", "beside", "of-a-young-pod", "of-no-pod", "not-tried", "young"} {
		claims[name] = oldClaim(t, "ml", name, threeGPUs)
	}
	claims["two"] = oldClaim(t, "ml", "two", twoGPUs)
	claims["one"] = oldClaim(t, "ml", "one", strings.Replace(twoGPUs, "2", "1", 1))
	claims["foreign"] = oldClaim(t, "ml", "foreign", strings.Replace(threeGPUs, "gpu.nvidia.com", "nic.example.com", 1))
	claims["young"].CreationTimestamp = metav1.Now()
	notTried := podOf(age, claims["not-tried"])
	notTried.Status.Conditions = nil
	objects := []runtime.Object{&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic.example.com"}},
		podOf(age, claims["three"], claims["beside"]), podOf(age, claims["two"]),
		podOf(age, claims["one"]), podOf(age, claims["foreign"]), podOf(age, claims["young"]),
		podOf(30*time.Second, claims["of-a-young-pod"]), notTried}
	for _, claim := range claims {
		objects = append(objects, claim)
	}
	c := newWaitingCluster(t, objects...)
	u := c.reporter()
	if err := c.report(t.Context(), u, c.now); err != nil {
		t.Fatal(err)
	}
	const node = " devices of one node, and no node has more than 1 for it; of the others, 1 is held by other " +
		"claims; smallest change: "
	const ofThree = " Warning NotAllocated: pod pod-three waits: request gpu of claim three: it wants 3 devices of " +
		"one node, and no node has more than 2, or more than 1 free; smallest change: in ResourceClaim ml/three, " +
		"request gpu: ask for 1 device instead of 3; and in ResourceClaim ml/beside, request gpu: ask for 1 device " +
		"instead of 3; and wait until a claim of another namespace has ended"
	const ofTwo = " Warning NotAllocated: pod pod-two waits: request gpu of claim two: it wants 2" + node +
		"in ResourceClaim ml/two, request gpu: ask for 1 device instead of 2"
	want := []string{"ml/beside" + ofThree, "ml/pod-three" + ofThree, "ml/pod-two" + ofTwo, "ml/three" + ofThree,
		"ml/two" + ofTwo}
	if got := c.told(t); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestWaitingNeedsAllRights: without one of the resources, nothing is told that may be wrong.
func TestWaitingNeedsAllRights(t *testing.T) {
	claim := oldClaim(t, "ml", "two", twoGPUs)
	c := newWaitingCluster(t, claim, podOf(2*time.Minute, claim))
	c.PrependReactor("list", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "", nil)
	})
	err := c.report(t.Context(), c.reporter(), c.now)
	if err == nil || !strings.Contains(err.Error(), `the missing right is the verb "list" on nodes`) {
		t.Errorf("got error %v, want the missing right", err)
	}
	if got := c.told(t); len(got) > 0 {
		t.Errorf("got %q, want no event", got)
	}
}

// TestWaitingEventsAreNotRepeated: an answer is told again when it changes, and when its event is gone.
func TestWaitingEventsAreNotRepeated(t *testing.T) {
	claim := oldClaim(t, "ml", "two", twoGPUs)
	c := newWaitingCluster(t, claim, podOf(2*time.Minute, claim))
	u := c.reporter()
	taint := func(effect resourceapi.DeviceTaintEffect) {
		t.Helper()
		slices, err := c.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range slices.Items {
			for i := range s.Spec.Devices {
				s.Spec.Devices[i].Taints = nil
				if effect != "" {
					s.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: "k", Effect: effect}}
				}
			}
			if _, err := c.ResourceV1().ResourceSlices().Update(t.Context(), &s, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, step := range []struct {
		name    string
		do      func()
		after   time.Duration
		creates int // of events, with those that exist
		events  int
	}{
		{"it has waited for a minute", func() {}, 0, 2, 2}, // about the claim and the pod
		{"a minute later, nothing is explained again", func() {}, time.Minute, 2, 2},
		{"later, the answer is the same", func() {}, 11 * time.Minute, 2, 2},
		{"another leader does not know that, and cannot repeat it", func() { u = c.reporter() }, 12 * time.Minute, 4,
			2},
		{"another answer", func() { taint(resourceapi.DeviceTaintEffectNoSchedule) }, 30 * time.Minute, 6, 4},
		{"the first answer again", func() { taint("") }, 45 * time.Minute, 8, 6},
		{"the event of it has expired", func() {}, 106 * time.Minute, 10, 8},
	} {
		step.do()
		if err := c.report(t.Context(), u, c.now.Add(step.after)); err != nil {
			t.Fatal(err)
		}
		if events := len(c.told(t)); c.creates != step.creates || events != step.events {
			t.Errorf("%s: got %d creates and %d events, want %d and %d", step.name, c.creates, events, step.creates,
				step.events)
		}
	}
}

// TestWaitingRound counts what a round does while 1,000 equal claims wait.
func TestWaitingRound(t *testing.T) { synctest.Test(t, testWaitingRound) } // a round has all the time it needs

func testWaitingRound(t *testing.T) {
	var objects []runtime.Object
	for i := range 1000 {
		claim := oldClaim(t, "large", fmt.Sprintf("claim-%04d", i), twoGPUs)
		objects = append(objects, claim, podOf(2*time.Minute, claim))
	}
	small := oldClaim(t, "small", "claim", twoGPUs)
	small.CreationTimestamp = metav1.NewTime(time.Now().Add(-90 * time.Second)) // younger than the others
	objects = append(objects, small, podOf(2*time.Minute, small))
	c := newWaitingCluster(t, objects...)
	u := c.reporter()
	for round := 1; round <= 2; round++ {
		if err := c.report(t.Context(), u, c.now.Add(time.Duration(round)*time.Minute)); err != nil {
			t.Fatal(err)
		}
		if got := len(c.told(t)); got != 2*round*maxTold {
			t.Errorf("round %d: got %d events, want %d: of claims and their pods", round, got, 2*round*maxTold)
		}
		for resource, lists := range c.lists() {
			if lists != round {
				t.Errorf("round %d: got %d lists of %s, want %d", round, lists, resource, round)
			}
		}
	}
	if len(c.lists()) != 8 {
		t.Errorf("got lists of %v, want those of eight resources", c.lists())
	}
	if got := c.told(t)[4*maxTold-1]; !strings.HasPrefix(got, "small/pod-claim ") {
		t.Errorf("got the last event %q, want that of the other namespace among the first ones", got)
	}

	for _, o := range objects { // nothing waits any more: nothing is read
		if pod, ok := o.(*corev1.Pod); ok {
			if err := c.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if claim, ok := o.(*resourceapi.ResourceClaim); ok {
			c.view.DeleteClaim(client.ObjectKeyFromObject(claim))
		}
	}
	if err := c.report(t.Context(), u, c.now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got := c.lists()["pods"]; got != 2 || c.lists()["nodes"] != 2 || len(u.claims) > 0 {
		t.Errorf("without claims that wait: got %d lists of pods, %d of nodes, and %d claims, want 2, 2, and none", got,
			c.lists()["nodes"], len(u.claims))
	}
}

// TestEqualClaims: equal claims have one answer, and are explained again in one round, however many rounds have told of
// them. Other rounds do not read the cluster.
func TestEqualClaims(t *testing.T) { synctest.Test(t, testEqualClaims) } // a round has all the time it needs

func testEqualClaims(t *testing.T) {
	var objects []runtime.Object
	for i := range 2*maxTold + 1 {
		claim := oldClaim(t, "ml", fmt.Sprintf("claim-%04d", i), twoGPUs)
		objects = append(objects, claim, podOf(2*time.Minute, claim))
	}
	c := newWaitingCluster(t, objects...)
	u := c.reporter()
	events, reads := []int{2 * maxTold, 4 * maxTold, 4*maxTold + 2}, []int{1, 2, 3}
	for _, minute := range []int{0, 1, 2, 3, 9, 10, 11, 19} {
		if err := c.report(t.Context(), u, c.now.Add(time.Duration(minute)*time.Minute)); err != nil {
			t.Fatal(err)
		}
		wantEvents, wantReads := events[min(minute, 2)], reads[min(minute, 2)]+minute/10
		if got, lists := c.creates, c.lists()["nodes"]; got != wantEvents || lists != wantReads {
			t.Errorf("minute %d: got %d events and %d lists of nodes, want %d and %d", minute, got, lists, wantEvents,
				wantReads)
		}
	}
}

// TestDifferentClaims: a round explains few claims that are not equal.
func TestDifferentClaims(t *testing.T) { synctest.Test(t, testDifferentClaims) } // a round has all the time it needs

func testDifferentClaims(t *testing.T) {
	var objects []runtime.Object
	for i := range 3 * maxExplained {
		claim := oldClaim(t, "ml", fmt.Sprint("claim-", i), strings.Replace(twoGPUs, "2", fmt.Sprint(2+i), 1))
		objects = append(objects, claim, podOf(2*time.Minute, claim))
	}
	c := newWaitingCluster(t, objects...)
	if err := c.report(t.Context(), c.reporter(), c.now); err != nil {
		t.Fatal(err)
	}
	if c.creates != 2*maxExplained {
		t.Errorf("got %d events, want %d: of claims and their pods", c.creates, 2*maxExplained)
	}
}

// TestWaitingPods: pods that no claim of the view leads to have an event, once for each cause.
func TestWaitingPods(t *testing.T) {
	const age = 2 * time.Minute
	named := func(name string, claim *resourceapi.ResourceClaim) *corev1.Pod {
		pod := podOf(age, claim)
		pod.Name, pod.UID, pod.Status.Conditions = name, types.UID(name), nil // the scheduler has not tried it
		return pod
	}
	missing := named("of-no-claim", oldClaim(t, "ml", "sharde", twoGPUs))
	shared := oldClaim(t, "ml", "shared", strings.Replace(twoGPUs, "2", "1", 1))
	elsewhere := named("of-another-namespace", oldClaim(t, "ml", "secret-project", twoGPUs))
	template := named("of-no-template", oldClaim(t, "ml", "gpu", twoGPUs))
	template.Spec.ResourceClaims[0].ResourceClaimName = nil
	template.Spec.ResourceClaims[0].ResourceClaimTemplateName = ptr.To("nothing")
	noClass := oldClaim(t, "ml", "profile", strings.Replace(threeGPUs, "gpu.nvidia.com, count: 3", "gpu.nvidia.org", 1))
	plain := podOf(age, shared)
	plain.Name, plain.UID, plain.Spec.ResourceClaims = "extended", "extended", nil
	plain.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{
		"nvidia.com/mig-5g.50gb": resource.MustParse("1")}}
	foreign := oldClaim(t, "ml", "nic", strings.Replace(threeGPUs, "gpu.nvidia.com", "nic.example.com", 1))
	attached := oldClaim(t, "ml", "attached", strings.Replace(twoGPUs, "2", "1", 1))
	attached.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: clustertest.Driver,
			Pool: "fabric", Device: "far-0", BindingConditions: []string{"Ready"}}}}}
	binding := podOf(age, attached)
	binding.Name, binding.UID = "binding", "binding"
	ofResource := plain.DeepCopy() // its claim waits for a binding condition, too
	ofResource.Name, ofResource.UID = "binding-of-a-resource", "of-resource"
	ofResource.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	special := attached.DeepCopy()
	special.Name, special.UID = "special", "special"
	special.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(ofResource,
		corev1.SchemeGroupVersion.WithKind("Pod"))}
	ofResource.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "special"}
	gated := named("gated", oldClaim(t, "ml", "absent", twoGPUs))
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
	placed := named("placed", oldClaim(t, "ml", "absent", twoGPUs))
	placed.Spec.NodeName = "a"
	c := newWaitingCluster(t, missing, elsewhere, template, named("of-no-class", noClass), noClass, plain, shared,
		named("of-a-nic", foreign), foreign,
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic.example.com"}},
		gated, placed, attached, binding, special, ofResource)
	u := c.reporter()
	want := []string{
		"ml/extended Warning NotAllocated: pod extended waits: no node offers nvidia.com/mig-5g.50gb",
		"ml/of-another-namespace Warning NotAllocated: pod of-another-namespace waits: claim secret-project does " +
			"not exist " +
			"in namespace ml; a pod uses only claims of its own namespace",
		"ml/of-no-claim Warning NotAllocated: pod of-no-claim waits: claim sharde does not exist in namespace ml; " +
			"did you " +
			"mean shared?",
		"ml/of-no-class Warning NotAllocated: pod of-no-class waits: request gpu of claim profile asks for the class " +
			"gpu.nvidia.org, which does not exist; did you mean gpu.nvidia.com?; smallest change: in ResourceClaim " +
			"ml/profile, request gpu: use the class gpu.nvidia.com",
		"ml/of-no-template Warning NotAllocated: pod of-no-template waits: template nothing of its claim gpu does " +
			"not " +
			"exist in namespace ml; a pod uses only templates of its own namespace. It may have been refused when " +
			"it was " +
			"applied",
	}
	for _, after := range []time.Duration{0, time.Minute, 11 * time.Minute} {
		if err := c.report(t.Context(), u, c.now.Add(after)); err != nil {
			t.Fatal(err)
		}
		got := c.told(t)
		same := len(got) == len(want)
		for i := 0; same && i < len(got); i++ {
			same = strings.HasPrefix(got[i], want[i])
		}
		if !same {
			t.Errorf("after %s: got\n%s\nwant\n%s", after, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestWaitingPodsAreBounded: many pods with a mistake are told in turns, and no round is long for them.
func TestWaitingPodsAreBounded(t *testing.T) {
	var objects []runtime.Object
	for i := range maxPods + 100 {
		objects = append(objects, podOf(2*time.Minute, oldClaim(t, "large", fmt.Sprintf("absent-%04d", i), twoGPUs)))
	}
	c := newWaitingCluster(t, objects...)
	u := c.reporter()
	for round := 1; round <= 2; round++ {
		if err := c.report(t.Context(), u, c.now.Add(time.Duration(round)*time.Minute)); err != nil {
			t.Fatal(err)
		}
		if got := len(c.told(t)); got != round*maxExplained {
			t.Errorf("round %d: got %d events, want %d", round, got, round*maxExplained)
		}
	}
	if len(u.pods) != maxPods {
		t.Errorf("%d pods are remembered, want %d", len(u.pods), maxPods)
	}
}

func TestWaitingPause(t *testing.T) {
	for _, row := range []struct {
		name              string
		after, used, want time.Duration
	}{
		{"a short round", time.Minute, time.Second, time.Minute},
		{"a long round", time.Minute, 10 * time.Second, 190 * time.Second},
		{"claims are told about after an hour", time.Hour, 0, time.Minute},
		{"claims are told about at once", 5 * time.Second, 100 * time.Millisecond, 5 * time.Second},
	} {
		if got := (&Waiting{after: row.after}).pauseAfter(row.used); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
	}
	if got := processorTime(); got <= 0 {
		t.Errorf("got a processor time of %s", got)
	}
}

// BenchmarkWaitingRound makes a round in a cluster of 1,000 nodes with eight GPUs each, 10,000 pods and 1,000 claims
// that wait, without decoding what the API server sends. It reports the part of a processor that rounds use with their
// pauses.
func BenchmarkWaitingRound(b *testing.B) {
	var objects []runtime.Object
	like := clustertest.Slices(b,
		clustertest.SimNode{Name: "like", Profile: "dgx-h100", Use: gpu.SharingMode{Sharing: gpu.Exclusive}})
	for i := range 1000 {
		node := fmt.Sprintf("node-%04d", i)
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		for _, s := range like {
			s = s.DeepCopy()
			s.Name, s.Spec.NodeName = s.Name+node, &node
			s.Spec.Pool.Name = strings.Replace(s.Spec.Pool.Name, "like", node, 1)
			objects = append(objects, s)
		}
		for j := range 10 {
			objects = append(objects, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "others",
				Name: fmt.Sprint(node, "-", j)}, Spec: corev1.PodSpec{NodeName: node,
				Containers: []corev1.Container{{Name: "main"}}}})
		}
		claim := oldClaim(b, "ml", fmt.Sprint("claim-", i), strings.Replace(twoGPUs, "2", fmt.Sprint(9+i%8), 1))
		objects = append(objects, claim, podOf(2*time.Minute, claim))
	}
	c := newWaitingCluster(b, objects...)
	before, rounds := processorTime(), 0
	u := c.reporter()
	for b.Loop() {
		rounds++
		if err := c.report(b.Context(), u, c.now.Add(time.Duration(rounds)*time.Minute)); err != nil {
			b.Fatal(err)
		}
	}
	used := (processorTime() - before) / time.Duration(rounds)
	b.ReportMetric(used.Seconds(), "cpu-s/round")
	b.ReportMetric(100*used.Seconds()/(used+u.pauseAfter(used)).Seconds(), "%")
}

// A claim whose explanation panics does not keep the others from theirs. It is not explained again at once.
func TestAPanicConcernsOneClaim(t *testing.T) {
	bad, good := oldClaim(t, "ns", "bad", threeGPUs), oldClaim(t, "ns", "good", threeGPUs)
	c := newWaitingCluster(t, bad, good, podOf(2*time.Minute, bad), podOf(2*time.Minute, good))
	u := c.reporter()
	explain, explained := u.explain, 0
	u.explain = func(ctx context.Context, e *why.Explainer, pod *corev1.Pod) (*why.Answer, error) {
		if explained++; pod.Name == "pod-bad" {
			panic("a mistake")
		}
		return explain(ctx, e, pod)
	}
	if err := c.report(t.Context(), u, c.now); !errors.Is(err, guard.ErrPanic) {
		t.Errorf("got %v, want the panic", err)
	}
	const want, wantPod = "ns/good Warning NotAllocated: pod pod-good waits", "ns/pod-good Warning NotAllocated: pod "
	if got := c.told(t); len(got) != 2 || !strings.HasPrefix(got[0], want) || !strings.HasPrefix(got[1], wantPod) {
		t.Errorf("got %q, want an event about the good claim and one about its pod", got)
	}
	if got := testutil.ToFloat64(u.Guard.Panics); got != 1 {
		t.Errorf("got %v panics counted, want 1", got)
	}
	if err := c.report(t.Context(), u, c.now.Add(time.Minute)); err != nil || explained != 2 {
		t.Errorf("got %v and %d explanations, want no third one", err, explained)
	}
}

// A claim that asks for too much to explain says so.
func TestAClaimThatIsTooLarge(t *testing.T) {
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf("{name: r%d, exactly: {deviceClassName: gpu.nvidia.com}}", i))
	}
	large := oldClaim(t, "ns", "large", "requests: ["+strings.Join(many, ", ")+"]")
	c := newWaitingCluster(t, large, podOf(2*time.Minute, large))
	if err := c.report(t.Context(), c.reporter(), c.now); err != nil {
		t.Fatal(err)
	}
	const want = "pod pod-large is not explained: it has 300 requests"
	if got := c.told(t); len(got) != 2 || !strings.Contains(got[0], want) || !strings.Contains(got[1], want) {
		t.Errorf("got %q, want that it is not explained, about the claim and its pod", got)
	}
}

// A namespace with many claims that take long does not keep the claims of another one waiting.
func TestNamespacesTakeTurns(t *testing.T) {
	u := NewWaiting(&feature.Controller{View: cluster.New(clustertest.Driver)}, nil, time.Minute)
	for _, class := range clustertest.Classes(t) {
		u.View.SetClass(class)
	}
	now := time.Now()
	for i, name := range []string{"many/a", "many/b", "many/c", "one/d"} {
		namespace, short, _ := strings.Cut(name, "/")
		claim := oldClaim(t, namespace, short, threeGPUs)
		claim.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(i-10) * time.Minute))
		u.View.SetClaim(cluster.SlimClaim(claim))
	}
	var order []string
	for range 3 { // each round has time for one
		all := u.waitingClaims(now)
		due := all.inTurns(u.claims)
		of := u.claims[due[0]]
		of.at, now = now, now.Add(time.Second)
		u.claims[due[0]] = of
		order = append(order, due[0].String())
	}
	if want := []string{"many/a", "one/d", "many/b"}; !slices.Equal(order, want) {
		t.Errorf("got %q, want %q", order, want)
	}
}

// A namespace with as many waiting pods as a round remembers does not keep those of later namespaces from their events.
func TestPodsOfManyNamespaces(t *testing.T) {
	var objects []runtime.Object
	pod := func(namespace, name string) *corev1.Pod {
		gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			UID: types.UID(namespace + name), CreationTimestamp: metav1.NewTime(time.Now().Add(-5 * time.Minute))},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main",
				Resources: corev1.ResourceRequirements{Requests: gpus, Limits: gpus}}}},
			Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}}}
	}
	for i := range maxPods {
		objects = append(objects, pod("many", fmt.Sprintf("p-%05d", i)))
	}
	objects = append(objects, pod("one", "mine"))
	c := newWaitingCluster(t, objects...)
	u := c.reporter()
	for i := range 4 {
		if err := c.report(t.Context(), u, c.now.Add(time.Duration(i)*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	if told := c.told(t); !slices.ContainsFunc(told, func(e string) bool { return strings.Contains(e, "one/mine") }) {
		t.Errorf("after 4 rounds, none of %d events is about the pod of the other namespace", len(told))
	}
}
