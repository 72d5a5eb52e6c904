// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/placement"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// world is a cluster with a scheduler that asks the extender and has the allocator of Kubernetes.
type world struct {
	*Extender
	t       testing.TB
	now     time.Time
	nodes   []string
	slices  []*resourceapi.ResourceSlice
	classes allocator.Classes
	claims  map[types.NamespacedName]*resourceapi.ResourceClaim
	cel     *cel.Cache
}

// newWorld returns a cluster of nodes with 64 cores each.
func newWorld(t testing.TB, nodes ...clustertest.SimNode) *world {
	t.Helper()
	w := &world{t: t, now: time.Unix(1e9, 0), claims: map[types.NamespacedName]*resourceapi.ResourceClaim{},
		classes: allocator.ClassesOf(clustertest.Classes(t)), cel: allocator.NewCache(100)}
	v := clustertest.New(t, nodes...)
	w.Extender = newExtender(v, func() error { return nil }, placement.Pack, func() time.Time { return w.now })
	w.begin = func() func() bool { return func() bool { return true } }
	for _, n := range nodes {
		w.nodes = append(w.nodes, n.Name)
		w.slices = append(w.slices, clustertest.Slices(t, n)...)
		w.setCPU(n.Name, 64)
	}
	return w
}

func (w *world) setCPU(node string, cores int64) {
	w.usage.setNode(&nodeSummary{metav1.ObjectMeta{Name: node}, nodeUse{host: host{cpu: cores * 1000}}})
}

// addClass adds a device class.
func (w *world) addClass(c *resourceapi.DeviceClass) {
	w.classes[c.Name] = c
	w.view.SetClass(c)
}

// claim creates a pending claim, and returns its name.
func (w *world) claim(name, devices string) string {
	w.t.Helper()
	c := clustertest.Claim(w.t, devices)
	c.Name, c.UID = name, types.UID(name)
	key := types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
	w.claims[key] = c
	w.view.SetClaim(cluster.SlimClaim(c))
	return name
}

// newPod returns a pod with as many cores and with these claims.
func newPod(name string, cores int64, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(cores, resource.DecimalSI)}}}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims,
			corev1.PodResourceClaim{Name: c, ResourceClaimName: ptr.To(c)})
	}
	return p
}

// pod creates a pod with a claim of its own.
func (w *world) pod(name string, cores int64, devices string) *corev1.Pod {
	w.t.Helper()
	return newPod(name, cores, w.claim(name, devices))
}

// exists makes the pod known, which has no node yet.
func (w *world) exists(pod *corev1.Pod) *corev1.Pod {
	w.t.Helper()
	summary, err := summarize(pod.DeepCopy())
	if err != nil {
		w.t.Fatal(err)
	}
	w.usage.setPod(summary.(*podSummary))
	return pod
}

// best returns the nodes with the best score, and the devices that the extender expects there: "a gpu-3b-00-0".
func (w *world) best(pod *corev1.Pod) (nodes []string, expected string) {
	w.t.Helper()
	for _, s := range w.Prioritize(w.t.Context(), pod, w.nodes) {
		if s.Score == MaxScore {
			nodes = append(nodes, s.Host)
		}
	}
	if p := w.usage.proposals[pod.UID]; p != nil {
		expected = p.node
		for _, t := range p.takes {
			expected += " " + t.GPU.Name
		}
	}
	return nodes, expected
}

// schedule places the pod on the best node, as the scheduler does, and returns where it is: "a gpu-3b-00-0".
func (w *world) schedule(pod *corev1.Pod) string {
	w.t.Helper()
	_, expected := w.best(pod)
	node, _, _ := strings.Cut(expected, " ")
	got, err := w.allocate(pod, node)
	if err != nil {
		w.t.Fatal(err)
	}
	if got != expected {
		w.t.Errorf("pod %s: expected %s, got %s", pod.Name, expected, got)
	}
	w.bind(pod, node)
	return got
}

var errNoFit = errors.New("it does not fit")

// allocate gives the pod the devices that Kubernetes' allocator gives it on the node, and the view hears of it.
func (w *world) allocate(pod *corev1.Pod, node string) (string, error) {
	w.t.Helper()
	text := node
	for _, c := range pod.Spec.ResourceClaims {
		claim := w.claims[types.NamespacedName{Namespace: pod.Namespace, Name: *c.ResourceClaimName}]
		if claim.Status.Allocation != nil {
			continue
		}
		results, err := w.classes.Place(w.t.Context(), w.cel, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
			w.slices, allocator.HeldBy(slices.Collect(maps.Values(w.claims)), nil), claim)
		if err != nil {
			return "", err
		}
		if len(results) == 0 {
			return "", fmt.Errorf("%s on %s: %w", pod.Name, node, errNoFit)
		}
		counted, err := w.view.AmountOf(w.t.Context(), claim)
		claim.Status.Allocation = &results[0]
		if holds, _ := w.view.AmountOf(w.t.Context(), claim); err == nil {
			for name, n := range counted { // a GPUQuota counts on this
				if holds[name] > n {
					w.t.Errorf("%s holds %d of %s, and counted as %d before", claim.Name, holds[name], name, n)
				}
			}
		}
		w.view.SetClaim(cluster.SlimClaim(claim))
		for _, r := range results[0].Devices.Results {
			text += " " + gpu.ParentName(r.Device)
		}
	}
	return text, nil
}

// bind makes the extender see the pod on the node.
func (w *world) bind(pod *corev1.Pod, node string) {
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node
	summary, err := summarize(bound)
	if err != nil {
		w.t.Fatal(err)
	}
	w.usage.setPod(summary.(*podSummary))
}

const (
	oneGPU   = `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]`
	share5Gi = `requests:
- {name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 5Gi}}}}`
)

// Shares of several pods fill one GPU of one node before others are touched, and a whole GPU goes to the node that is
// in use. By the policy spread, each pod gets another node.
func TestShares(t *testing.T) {
	for _, tc := range []struct {
		policy string
		want   []string
	}{
		{"pack", []string{"a gpu-3b-00-0", "a gpu-3b-00-0", "a gpu-3b-00-0", "a gpu-af-00-0"}},
		{"spread", []string{"a gpu-3b-00-0", "b gpu-3b-00-0", "c gpu-3b-00-0"}},
	} {
		t.Run(tc.policy, func(t *testing.T) {
			w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"},
				clustertest.SimNode{Name: "b", Profile: "t4-x2"}, clustertest.SimNode{Name: "c", Profile: "t4-x2"})
			for i, want := range tc.want {
				pod := w.pod(fmt.Sprint("share", i), 1, share5Gi)
				pod.Annotations = map[string]string{PolicyAnnotation: tc.policy}
				if got := w.schedule(pod); got != want {
					t.Errorf("share %d: got %s, want %s", i, got, want)
				}
			}
			if tc.policy == "pack" {
				if nodes, _ := w.best(w.pod("whole", 1, oneGPU)); slices.Contains(nodes, "a") {
					t.Errorf("a whole GPU: got %v, want a node that has two", nodes)
				}
			}
		})
	}
}

// A scheduler that has read a claim before the controller did waits for the controller; one that waits no longer, and a
// claim with devices of another driver, are not waited for.
func TestClaimThatIsReadLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"},
			clustertest.SimNode{Name: "b", Profile: "t4-x2"})
		w.schedule(w.pod("first", 1, share5Gi))
		w.bind(newPod("other", 50), "b") // where a pod without GPUs would come
		done := make(chan []string, 1)
		go func() {
			nodes, _ := w.best(newPod("second", 1, "late"))
			done <- nodes
		}()
		synctest.Wait()
		w.claim("late", share5Gi)
		if got := <-done; !slices.Equal(got, []string{"a"}) {
			t.Errorf("a claim that was read later: got the nodes %v, want [a], which has a share and room", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := w.Prioritize(ctx, newPod("third", 1, "never"), w.nodes); got != nil {
			t.Errorf("a claim that is not read before the scheduler gives up: got %v, want no scores", got)
		}
		foreign := clustertest.Claim(t, oneGPU)
		foreign.Name = "foreign"
		foreign.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: "nic.example.com",
				Pool: "a", Device: "nic-0"}}}}
		w.view.SetClaim(cluster.SlimClaim(foreign))
		got, expected := w.best(newPod("fourth", 1, "foreign"))
		if len(got) == 0 || strings.Contains(expected, "gpu-") {
			t.Errorf("another driver's devices: got the nodes %v and %q, want a node and no GPU", got, expected)
		}
	})
}

// Pods that accept one model only keep others off that model, as long as they are there.
func TestModelsThatOthersMustHave(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "l40s-x4"},
		clustertest.SimNode{Name: "b", Profile: "t4-x2"}, clustertest.SimNode{Name: "c", Profile: "t4-x2"})
	w.setCPU("a", 12)
	anything := w.pod("any", 4, oneGPU)
	if nodes, _ := w.best(anything); !slices.Equal(nodes, []string{"a"}) {
		t.Fatalf("without other pods: got %v, want a, which has the least CPU for each GPU", nodes)
	}
	var others []*corev1.Pod
	for i := range 20 {
		p := w.pod(fmt.Sprint("l40s", i), 4, `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, selectors:
			[{cel: {expression: "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA L40S'"}}]}}]`)
		if i%2 == 0 {
			w.exists(p)
		}
		w.best(p)
		w.exists(p) // as often, it is seen after it was asked for
		w.now = w.now.Add(proposalLifetime)
		others = append(others, p)
	}
	if nodes, _ := w.best(anything); slices.Contains(nodes, "a") {
		t.Errorf("beside pods for the model of a: got %v, want another node", nodes)
	}
	for _, p := range others {
		w.usage.deletePod(&podSummary{ObjectMeta: metav1.ObjectMeta{UID: p.UID}})
	}
	w.now = w.now.Add(proposalLifetime)
	if nodes, _ := w.best(anything); !slices.Equal(nodes, []string{"a"}) {
		t.Errorf("after they are gone: got %v, want a", nodes)
	}
}

// The policy comes from the pod's annotations, or else from the flag.
func TestPolicy(t *testing.T) {
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		want        placement.Policy
	}{
		{"nothing", nil, placement.Pack},
		{"its own", map[string]string{PolicyAnnotation: "spread"}, placement.Spread},
		{"HAMi's for nodes", map[string]string{"hami.io/node-scheduler-policy": "spread"}, placement.Spread},
		{"HAMi's for GPUs", map[string]string{"hami.io/gpu-scheduler-policy": "spread"}, placement.Spread},
		{"HAMi's two: that for nodes counts", map[string]string{"hami.io/node-scheduler-policy": "binpack",
			"hami.io/gpu-scheduler-policy": "spread"}, placement.Pack},
		{"its own and HAMi's", map[string]string{PolicyAnnotation: "pack", "hami.io/node-scheduler-policy": "spread"},
			placement.Pack},
		{"HAMi's word in its own", map[string]string{PolicyAnnotation: "binpack"}, placement.Pack},
		{"no policy", map[string]string{"hami.io/node-scheduler-policy": "topology-aware"}, placement.Pack},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, _, _ := policyOf(tc.annotations, placement.Pack); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
