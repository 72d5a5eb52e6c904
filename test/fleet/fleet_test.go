// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// madeByHand is a partition that the end-to-end tests create as an administrator would. It does not exist here.
const madeByHand = "gpu-c1-00-0-mig-3g20gb-0"

// A node of a fleet has the same devices in the same order as the golden files of the end-to-end tests, which a real
// plugin published.
func TestTheDevicesAreThoseOfThePlugin(t *testing.T) {
	golden, err := filepath.Glob("../e2e/testdata/*.txt")
	if err != nil || len(golden) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, file := range golden {
		profile := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(profile, func(t *testing.T) {
			m, err := newModel(profile, t.TempDir())
			requireError(t, err, "")
			inv, err := m.discover(gpu.SharingMode{OnDemand: true})
			requireError(t, err, "")
			var got, want []string
			for _, s := range inventory.Slices(Driver, "node", inv.Only(inv.OfferAtFirst()).Pools("node")) {
				for _, d := range s.Spec.Devices {
					if !gpu.IsVFIO(d.Name) { // these depend on the node configuration
						got = append(got, d.Name)
					}
				}
			}
			text, err := os.ReadFile(file)
			requireError(t, err, "")
			for line := range strings.Lines(string(text)) {
				name := strings.TrimSpace(line)
				if !strings.HasPrefix(line, " ") && name != madeByHand && !gpu.IsVFIO(name) {
					want = append(want, name)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestAFleetComesAndGoes(t *testing.T) {
	client := newServer(
		pod("waits", "", nil),
		pod("elsewhere", "node-1", nil),
		pod("early", "fleet-1", nil),
	)
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	f, err := start(t.Context(), client, Config{Nodes: []Node{
		{Name: "fleet-1", Profile: "t4-x2", Labels: map[string]string{"rack": "a"}},
		{Name: "fleet-2", Profile: "t4-x2"},
	}})
	requireError(t, err, "")
	if left, _ := os.ReadDir(temporary); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
	if got, want := f.Size(), (Size{Nodes: 2, GPUs: 4, Devices: 6, Slices: 4}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	requireState(t, client, `
node fleet-1 gpu.nvidia.com/fleet-profile=t4-x2 kubernetes.io/arch=amd64 kubernetes.io/hostname=fleet-1 kubernetes.io/os=linux rack=a: Ready, 128 CPUs, 2Ti
node fleet-2 gpu.nvidia.com/fleet-profile=t4-x2 kubernetes.io/arch=amd64 kubernetes.io/hostname=fleet-2 kubernetes.io/os=linux: Ready, 128 CPUs, 2Ti
lease fleet-1
lease fleet-2
slice 00000-gpu.nvidia.com-fleet-1- of node fleet-1, pool fleet-1, owners 1: 2 devices
slice 00000-gpu.nvidia.com-fleet-2- of node fleet-2, pool fleet-2, owners 1: 2 devices
slice 00000-gpu.nvidia.com.monitor-fleet-1- of node fleet-1, pool fleet-1/monitor, owners 1: 1 devices
slice 00000-gpu.nvidia.com.monitor-fleet-2- of node fleet-2, pool fleet-2/monitor, owners 1: 1 devices
pod early on fleet-1: Running
pod elsewhere on node-1: Pending
pod waits on : Pending
`)
	requireDistinctUUIDs(t, client, 4)

	requireError(t, f.Add(t.Context(), Node{Name: "fleet-2", Profile: "t4-x2"}),
		"node fleet-2: it is in the fleet already")
	requireError(t, f.Add(t.Context(), Node{Name: "Fleet 3", Profile: "t4-x2"}),
		`node "Fleet 3": a lowercase RFC 1123 subdomain`)
	_, err = client.CoreV1().Pods("default").Update(t.Context(), pod("early", "fleet-1", ptr.To(metav1.Now())),
		metav1.UpdateOptions{})
	requireError(t, err, "")
	requireError(t, f.Remove(t.Context(), "fleet-2", "fleet-9"), "")
	requireState(t, client, `
node fleet-1 gpu.nvidia.com/fleet-profile=t4-x2 kubernetes.io/arch=amd64 kubernetes.io/hostname=fleet-1 kubernetes.io/os=linux rack=a: Ready, 128 CPUs, 2Ti
lease fleet-1
slice 00000-gpu.nvidia.com-fleet-1- of node fleet-1, pool fleet-1, owners 1: 2 devices
slice 00000-gpu.nvidia.com.monitor-fleet-1- of node fleet-1, pool fleet-1/monitor, owners 1: 1 devices
pod elsewhere on node-1: Pending
pod waits on : Pending
`)
	requireError(t, f.Stop(t.Context()), "")
	requireState(t, client, `
pod elsewhere on node-1: Pending
pod waits on : Pending
`)
}

func TestStartLeavesOtherNodesAlone(t *testing.T) {
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
	client := newServer(other)
	_, err := start(t.Context(), client, Config{Nodes: []Node{{Name: "fleet-1", Profile: "t4-x2"},
		{Name: "gpu-1", Profile: "t4-x2"}}})
	requireError(t, err, "node gpu-1: there is a node of that name that is not of a fleet: it has no label "+
		"gpu.nvidia.com/fleet-profile")
	requireState(t, client, "\nnode gpu-1 : , 0 CPUs, 0\n")
}

func TestTwoFleetsDoNotPlayTheSameNode(t *testing.T) {
	client := newServer()
	nodes := Config{Nodes: []Node{{Name: "fleet-1", Profile: "t4-x2"}}}
	f, err := start(t.Context(), client, nodes)
	requireError(t, err, "")
	before := "\n" + state(t.Context(), client)
	_, err = start(t.Context(), client, nodes)
	requireError(t, err, "node fleet-1: another fleet runs it, or did until ")
	requireError(t, err, "s ago: end it, or wait until it has been silent for 20s")
	requireState(t, client, before)
	requireError(t, f.Stop(t.Context()), "")
}

func TestStartReplacesWhatAFleetHasLeft(t *testing.T) {
	left := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "fleet-1", UID: "old",
		Labels: map[string]string{ProfileLabel: "dgx-h100"}}}
	old := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "old"},
		Spec: resourceapi.ResourceSliceSpec{NodeName: ptr.To("fleet-1")}}
	client := newServer(left, old)
	f, err := start(t.Context(), client, Config{Nodes: []Node{{Name: "fleet-1", Profile: "t4-x2"}}})
	requireError(t, err, "")
	requireState(t, client, `
node fleet-1 gpu.nvidia.com/fleet-profile=t4-x2 kubernetes.io/arch=amd64 kubernetes.io/hostname=fleet-1 kubernetes.io/os=linux: Ready, 128 CPUs, 2Ti
lease fleet-1
slice 00000-gpu.nvidia.com-fleet-1- of node fleet-1, pool fleet-1, owners 1: 2 devices
slice 00000-gpu.nvidia.com.monitor-fleet-1- of node fleet-1, pool fleet-1/monitor, owners 1: 1 devices
`)
	requireError(t, f.Stop(t.Context()), "")
}

func TestRunning(t *testing.T) {
	now := metav1.NewTime(time.Unix(1e9, 0))
	p := pod("p", "fleet-1", nil)
	p.Generation = 3
	p.Spec.InitContainers = []corev1.Container{{Name: "setup"},
		{Name: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
		{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu"}}
	s := running(p, now)
	var got strings.Builder
	fmt.Fprintln(&got, s.Phase, s.ObservedGeneration, s.StartTime.Equal(&now), len(s.ResourceClaimStatuses))
	for _, c := range s.Conditions {
		fmt.Fprintln(&got, c.Type, c.Status)
	}
	for _, c := range append(s.InitContainerStatuses, s.ContainerStatuses...) {
		fmt.Fprintln(&got, c.Name, c.Ready, *c.Started, c.State.Running != nil, c.State.Terminated != nil)
	}
	const want = `Running 3 true 1
PodScheduled True
Ready True
PodReadyToStartContainers True
Initialized True
ContainersReady True
setup true false false true
sidecar true true true false
main true true true false
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
	if p.Status.Phase != corev1.PodPending {
		t.Error("the pod itself was changed")
	}
}

func pod(name, node string, deleted *metav1.Time) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, DeletionTimestamp: deleted,
			DeletionGracePeriodSeconds: ptr.To(int64(30))},
		Spec:   corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

// newServer adds to the fake client what the API server does: generated names, and field selectors for slices and pods.
func newServer(objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	var names atomic.Int32
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		slice.Name = fmt.Sprint(slice.GenerateName, names.Add(1))
		return false, nil, nil
	})
	client.PrependReactor("list", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		found, err := client.Tracker().List(action.GetResource(),
			resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), "")
		if err != nil {
			return true, nil, err
		}
		list := found.(*resourceapi.ResourceSliceList)
		list.Items = slices.DeleteFunc(list.Items, func(s resourceapi.ResourceSlice) bool {
			return !ofNode(action, *s.Spec.NodeName)
		})
		return true, list, nil
	})
	client.PrependReactor("delete-collection", "resourceslices", func(action clienttesting.Action) (bool,
		runtime.Object, error) {
		found, err := client.Tracker().List(action.GetResource(),
			resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), "")
		if err != nil {
			return true, nil, err
		}
		for _, s := range found.(*resourceapi.ResourceSliceList).Items {
			if action.(clienttesting.DeleteCollectionAction).GetListRestrictions().Fields.Matches(
				slicesOf(*s.Spec.NodeName)) {
				err = errors.Join(err, client.Tracker().Delete(action.GetResource(), "", s.Name))
			}
		}
		return true, nil, err
	})
	client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		found, err := client.Tracker().List(action.GetResource(), corev1.SchemeGroupVersion.WithKind("Pod"),
			action.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		list := found.(*corev1.PodList)
		list.Items = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !ofNode(action, p.Spec.NodeName) })
		return true, list, nil
	})
	return client
}

func ofNode(action clienttesting.Action, node string) bool {
	return action.(clienttesting.ListAction).GetListRestrictions().Fields.Matches(slicesOf(node))
}

// slicesOf are the fields that select slices of a node. The field for pods has the same name.
func slicesOf(node string) fields.Set {
	return fields.Set{resourceapi.ResourceSliceSelectorNodeName: node, resourceapi.ResourceSliceSelectorDriver: Driver}
}

// requireState waits until the API server has exactly the wanted state.
func requireState(t *testing.T, client kubernetes.Interface, want string) {
	t.Helper()
	got := ""
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if got = "\n" + state(t.Context(), client); got == want {
			return
		}
	}
	t.Errorf("got%swant%s", got, want)
}

func state(ctx context.Context, client kubernetes.Interface) string {
	var b strings.Builder
	nodes, _ := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	for _, n := range nodes.Items {
		labels := strings.ReplaceAll(fields.Set(n.Labels).String(), ",", " ")
		ready := ""
		for _, c := range n.Status.Conditions {
			if c.Status == corev1.ConditionTrue {
				ready += string(c.Type)
			}
		}
		fmt.Fprintf(&b, "node %s %s: %s, %s CPUs, %s\n", n.Name, labels, ready, n.Status.Allocatable.Cpu(),
			n.Status.Allocatable.Memory())
	}
	leases, _ := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	for _, l := range leases.Items {
		fmt.Fprintln(&b, "lease", l.Name)
	}
	found, _ := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	for _, s := range found.Items {
		fmt.Fprintf(&b, "slice %s of node %s, pool %s, owners %d: %d devices\n", s.GenerateName, *s.Spec.NodeName,
			s.Spec.Pool.Name, len(s.OwnerReferences), len(s.Spec.Devices))
	}
	pods, _ := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	for _, p := range pods.Items {
		fmt.Fprintf(&b, "pod %s on %s: %s\n", p.Name, p.Spec.NodeName, p.Status.Phase)
	}
	return b.String()
}

func requireDistinctUUIDs(t *testing.T, client kubernetes.Interface, want int) {
	t.Helper()
	found, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	requireError(t, err, "")
	seen := map[string]bool{}
	for _, s := range found.Items {
		for _, d := range s.Spec.Devices {
			if d.Attributes["type"].StringValue != nil && *d.Attributes["type"].StringValue == "gpu" {
				seen[*d.Attributes["uuid"].StringValue] = true
			}
		}
	}
	if len(seen) != want {
		t.Errorf("got %d UUIDs, want %d: %v", len(seen), want, seen)
	}
}

// Without leases and kubelets, only the nodes with their slices are there.
func TestInertNodes(t *testing.T) {
	client := newServer(pod("early", "fleet-1", nil))
	f, err := start(t.Context(), client, Config{Nodes: []Node{{Name: "fleet-1", Profile: "t4-x2"}}, Inert: true})
	requireError(t, err, "")
	for _, action := range client.Actions() {
		if resource := action.GetResource().Resource; resource == "pods" || action.GetVerb() == "patch" {
			t.Errorf("the fleet did %s %s", action.GetVerb(), resource)
		}
	}
	requireState(t, client, `
node fleet-1 gpu.nvidia.com/fleet-profile=t4-x2 kubernetes.io/arch=amd64 kubernetes.io/hostname=fleet-1 kubernetes.io/os=linux: Ready, 128 CPUs, 2Ti
lease fleet-1
slice 00000-gpu.nvidia.com-fleet-1- of node fleet-1, pool fleet-1, owners 1: 2 devices
slice 00000-gpu.nvidia.com.monitor-fleet-1- of node fleet-1, pool fleet-1/monitor, owners 1: 1 devices
pod early on fleet-1: Pending
`)
	requireError(t, f.Stop(t.Context()), "")
}
