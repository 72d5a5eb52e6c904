// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/simulator/fleettest"
)

// planText writes the answer, with GPUs by number.
func planText(s *cluster.Snapshot, d *Defragmentation) string {
	short := func(node, device string) string {
		number := slices.Index(wholeGPUs(s, node), gpu.ParentName(device))
		if gpu.IsPartition(device) {
			return fmt.Sprintf("%s/%d/%s", node, number, gpu.PartitionProfile(device))
		}
		return fmt.Sprintf("%s/%d", node, number)
	}
	var all []string
	for _, m := range d.Moves {
		for _, of := range m.Devices {
			all = append(all, fmt.Sprintf("%s: %s to %s", m.Pod, short(of.Node, of.Device),
				short(of.ToNode, of.ToDevice)))
		}
	}
	for _, g := range d.Frees {
		all = append(all, "free "+short(g.Node, g.Name))
	}
	for _, stay := range d.Stays {
		all = append(all, fmt.Sprintf("%d stay: %s (%s)", stay.Pods, stay.Reason, strings.Join(stay.Examples, ", ")))
	}
	if d.NotTried != "" {
		all = append(all, "not tried: "+d.NotTried)
	}
	return strings.Join(all, "; ")
}

var defragged = DefragOptions{Drivers: []string{driver}}

// onNodes returns nodes with two T4 each, and from the name "m" on with two RTX PRO 6000, which can be partitioned.
func onNodes(t testing.TB, names ...string) *cluster.Snapshot {
	t.Helper()
	var nodes []clustertest.SimNode
	for _, name := range names {
		profile := "t4-x2"
		switch {
		case name >= "m":
			profile = "rtxpro6000-x2"
		case name == "l":
			profile = "l40s-x4"
		}
		nodes = append(nodes, clustertest.SimNode{Name: name, Profile: profile})
	}
	return fleet(t, nodes...)
}

func TestDefrag(t *testing.T) {
	type world = *cluster.Snapshot
	all := func(t *testing.T, s world, pods ...string) { // "NAME HOLDS, HOLDS"
		for _, text := range pods {
			name, holds, _ := strings.Cut(text, " ")
			if !run(t, s, name, "ReplicaSet", strings.Split(holds, ", ")...) {
				t.Fatalf("%s has no room", text)
			}
		}
	}
	of := func(s world, name string) *corev1.Pod {
		p, _ := schedule.ByName(s.Pods).Find("ns", name)
		return p
	}
	one := func(options DefragOptions) DefragOptions {
		options.Drivers = defragged.Drivers
		return options
	}
	for _, row := range []struct {
		name    string
		nodes   string
		change  func(t *testing.T, s world)
		options DefragOptions
		want    string
	}{
		{"one share moves and a GPU is free", "a", func(t *testing.T, s world) { all(t, s, "x a/0 5Gi", "y a/1 6Gi") },
			defragged, "x: a/0 to a/1; free a/0"},
		{"two shares move to the fullest GPUs", "a b", func(t *testing.T, s world) {
			all(t, s, "x a/0 4Gi", "y a/0 5Gi", "z a/1 6Gi", "v a/1 6Gi", "w b/0 10Gi", "u b/1 5Gi", "k b/1 6Gi")
		}, defragged, "y: a/0 to b/0; x: a/0 to b/1; free a/0"},
		{"a GPU that claims hold completely is freed, too", "a b", func(t *testing.T, s world) {
			all(t, s, "x a/0 5Gi", "y a/0 10Gi", "w a/1 9Gi", "u b/0 4Gi", "v b/1 whole")
			of(s, "w").OwnerReferences, of(s, "u").OwnerReferences = nil, nil
		}, defragged, "y: a/0 to b/0; x: a/0 to a/1; free a/0; 2 stay: no controller creates it again (ns/u, ns/w)"},
		{"a GPU in a virtual machine is no target", "l", func(t *testing.T, s world) {
			all(t, s, "x l/0 5Gi", "v l/1 vm", "y l/2 6Gi", "w l/3 vm")
		}, defragged, "x: l/0 to l/2; free l/0"},
		{"an idle GPU is no target", "a", func(t *testing.T, s world) { all(t, s, "x a/0 5Gi") }, defragged, ""},
		{"a full GPU is no target", "a", func(t *testing.T, s world) { all(t, s, "x a/0 5Gi", "y a/1 whole") },
			defragged, ""},
		{"the larger one comes first", "a b", func(t *testing.T, s world) {
			all(t, s, "x a/0 2Gi", "y a/0 6Gi", "v a/1 9Gi", "w b/0 13Gi", "u b/1 whole")
			of(s, "v").OwnerReferences, of(s, "w").OwnerReferences = nil, nil
		}, defragged, "y: a/0 to a/1; x: a/0 to b/0; free a/0; 2 stay: no controller creates it again (ns/v, ns/w)"},
		{"a GPU with a taint is neither freed nor a target", "a b", func(t *testing.T, s world) {
			all(t, s, "x a/0 5Gi", "y b/0 6Gi", "z b/1 7Gi")
			setTaint(s, "gpu-3b-00-0")
			all(t, s)
		}, defragged, ""},
		{"a node without CPU is no target", "a b", func(t *testing.T, s world) {
			all(t, s, "x a/0 5Gi", "y b/0 6Gi")
			s.Nodes[1].Status.Allocatable["cpu"] = resource.MustParse("1")
		}, defragged, "y: b/0 to a/0; free b/0"},
		{"the CPU of a pod that moves is free on its node", "a", func(t *testing.T, s world) {
			all(t, s, "x a/0 5Gi", "y a/1 6Gi")
			s.Nodes[0].Status.Allocatable["cpu"] = resource.MustParse("2")
		}, defragged, "x: a/0 to a/1; free a/0"},
		{"a pod with two claims moves with both", "a b", func(t *testing.T, s world) {
			all(t, s, "x a/0 2Gi, a/1 3Gi", "y b/0 10Gi", "z b/1 9Gi", "v a/1 1Gi")
		}, defragged, "x: a/0 to b/0; x: a/1 to b/0; free a/0"},
		{"a pod with two claims gets back what it had of another GPU", "a", func(t *testing.T, s world) {
			all(t, s, "x a/0 2Gi, a/1 8Gi", "y a/1 4Gi")
			of(s, "y").OwnerReferences = nil
		}, defragged, "x: a/0 to a/1; x: a/1 to a/1; free a/0; 1 stay: no controller creates it again (ns/y)"},
		{"the fullest GPU is not the right one for the first pod", "a b", func(t *testing.T, s world) {
			all(t, s, "x a/0 5Gi", "y a/0 4Gi", "z a/0 3Gi", "w a/0 3Gi", "v a/1 7Gi", "u b/0 8Gi", "k b/1 whole")
			of(s, "v").OwnerReferences, of(s, "u").OwnerReferences = nil, nil
		}, defragged, "x: a/0 to a/1; y: a/0 to b/0; w: a/0 to b/0; z: a/0 to a/1; free a/0; " +
			"2 stay: no controller creates it again (ns/u, ns/v)"},
		{"all GPUs of a node", "a b c", func(t *testing.T, s world) {
			all(t, s, "x a/0 2Gi", "y a/1 9Gi", "z b/0 10Gi", "v b/1 5Gi", "k b/1 1Gi", "w c/0 1Gi", "u c/1 whole")
		}, one(DefragOptions{Node: "a"}), "y: a/1 to b/1; x: a/0 to b/0; free a/0; free a/1"},
		{"the node that costs the fewest moves", "a b c", func(t *testing.T, s world) {
			all(t, s, "x a/0 2Gi", "y a/1 9Gi", "z b/0 10Gi", "w c/0 1Gi")
		}, one(DefragOptions{Nodes: true}), "w: c/0 to b/0; free c/0; free c/1"},
		{"a node with a whole GPU moves to an idle GPU of a node that is used", "a b", func(t *testing.T, s world) {
			all(t, s, "x a/0 whole", "y b/0 whole")
		}, one(DefragOptions{Node: "a"}), "x: a/0 to b/1; free a/0; free a/1"},
		{"an idle node is no target", "a b", func(t *testing.T, s world) { all(t, s, "x a/0 5Gi") },
			one(DefragOptions{Node: "a"}), ""},
		{"a pod without a controller", "a", func(t *testing.T, s world) {
			all(t, s, "x a/0 5Gi", "y a/1 6Gi")
			of(s, "x").OwnerReferences = nil
		}, defragged, "y: a/1 to a/0; free a/1; 1 stay: no controller creates it again (ns/x)"},
		{"pods that cannot move", "a b c d e", func(t *testing.T, s world) {
			all(t, s, "x0 a/0 5Gi", "x1 a/1 6Gi", "x2 b/0 5Gi", "x3 b/1 5Gi", "x4 c/0 5Gi", "x5 c/1 5Gi", "x6 d/0 5Gi",
				"x7 d/1 5Gi", "x8 e/0 5Gi", "x9 e/1 5Gi")
			of(s, "x0").OwnerReferences[0].Kind = "DaemonSet"
			of(s, "x1").Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
			of(s, "x2").OwnerReferences[0].Kind = "Job"
			of(s, "x3").DeletionTimestamp = ptr.To(metav1.Now())
			of(s, "x4").Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "x4-0",
				ResourceClaimName: ptr.To("x4-0")}
			of(s, "x5").Annotations = map[string]string{"karpenter.sh/do-not-disrupt": "true"}
			of(s, "x6").Spec.SchedulingGroup = &corev1.PodSchedulingGroup{}
			s.Templates = slices.DeleteFunc(s.Templates, func(t *resourceapi.ResourceClaimTemplate) bool {
				if t.Name == "x7-0" {
					t.Spec.Spec.Devices.Requests[0].Exactly.Tolerations = []resourceapi.DeviceToleration{
						{Operator: resourceapi.DeviceTolerationOpExists}}
				}
				return t.Name == "x8-0"
			})
			claim, _ := schedule.ByName(s.Claims).Find("ns", "x9-0")
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
				Resource: "pods", Name: "x0", UID: "pod-x0"})
		}, defragged, "1 stay: a claim of it is not from a template, so the new pod gets the same devices (ns/x4); " +
			"1 stay: a claim of it tolerates every taint, so the new pod may get the same devices (ns/x7); " +
			"1 stay: an annotation forbids that it is moved (ns/x5); 1 stay: another pod uses a claim of it (ns/x9); " +
			"1 stay: it has ended, or is about to (ns/x3); 1 stay: it is a static pod (ns/x1); " +
			"1 stay: it is of a job, for which an eviction is a failure (--with-jobs moves it) (ns/x2); " +
			"1 stay: it is of a pod group (ns/x6); " +
			"1 stay: its DaemonSet creates it again on the same node (ns/x0); " +
			"1 stay: the template of a claim of it does not exist, or cannot be used (ns/x8)"},
		{"a partition moves to a GPU with partitions", "m", func(t *testing.T, s world) {
			all(t, s, "x m/0 1g.24gb", "y m/1 1g.24gb", "z m/1 2g.48gb")
		}, defragged, "x: m/0/1g24gb to m/1/1g24gb; free m/0"},
		{"a partition without room", "m", func(t *testing.T, s world) {
			all(t, s, "x m/0 2g.48gb", "y m/1 1g.24gb", "z m/1 2g.48gb", "v m/1 1g.24gb")
			of(s, "y").OwnerReferences = nil
		}, defragged, "1 stay: no controller creates it again (ns/y)"},
		{"a partition does not move to a shared GPU", "m", func(t *testing.T, s world) {
			all(t, s, "x m/0 1g.24gb", "y m/1 5Gi")
		}, defragged, ""},
		{"a pod of a Job, if that is wanted", "a", func(t *testing.T, s world) {
			all(t, s, "x a/0 5Gi", "y a/1 6Gi")
			of(s, "x").OwnerReferences[0].Kind = "Job"
		}, one(DefragOptions{Jobs: true}), "x: a/0 to a/1; free a/0"},
		{"a pod of another kind of job", "a", func(t *testing.T, s world) {
			all(t, s, "x a/0 5Gi", "y a/1 6Gi")
			of(s, "x").OwnerReferences[0].Kind = "PyTorchJob"
			of(s, "x").Spec.RestartPolicy = corev1.RestartPolicyOnFailure
		}, defragged, "y: a/1 to a/0; free a/1; " +
			"1 stay: it is of a job, for which an eviction is a failure (--with-jobs moves it) (ns/x)"},
		{"a pod that has devices and no node yet", "a", func(t *testing.T, s world) {
			all(t, s, "x a/0 5Gi", "y a/1 6Gi")
			of(s, "x").Spec.NodeName = ""
		}, defragged, "y: a/1 to a/0; free a/1; 1 stay: it has no node yet (ns/x)"},
		{"the slices of a node outlive it", "a b", func(t *testing.T, s world) {
			all(t, s, "x a/0 5Gi", "y a/1 6Gi", "z b/0 8Gi")
			s.Nodes = s.Nodes[:1]
		}, defragged, "x: a/0 to a/1; free a/0"},
		{"a claim that no pod uses", "a", func(t *testing.T, s world) {
			all(t, s, "x a/0 5Gi", "y a/1 6Gi")
			s.Claims[0].Status.ReservedFor = nil
		}, defragged, "y: a/1 to a/0; free a/1; 1 stay: no pod uses the claim (ns/x-0)"},
		{"a claim that the pod does not name", "a", func(t *testing.T, s world) {
			all(t, s, "x a/0 5Gi", "y a/1 6Gi")
			s.Claims[0].Status.ReservedFor[0].UID = "pod-y"
		}, defragged, "1 stay: a claim is reserved for it that it does not name (ns/y)"},
		{"pods that the user may not read", "a", func(t *testing.T, s world) {
			all(t, s, "x a/0 5Gi", "y a/1 6Gi")
			s.Pods = nil
			s.Unread[cluster.Pods] = &cluster.PartialError{Namespace: "mine", Err: fmt.Errorf("forbidden")}
		}, defragged, "2 stay: you may not read pods of the namespace (ns/x-0, ns/y-0)"},
		{"there is no time", "a", func(t *testing.T, s world) { all(t, s, "x a/0 5Gi", "y a/1 6Gi") },
			one(DefragOptions{Timeout: 1}), "not tried: 2 of 2 candidates, for want of time"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := onNodes(t, strings.Fields(row.nodes)...)
			row.change(t, s)
			d, err := Defrag(t.Context(), s, row.options)
			if err != nil {
				t.Fatal(err)
			}
			if got := planText(s, d); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

// TestDefragKeeps: what replacements must not get is what their claims accept of the freed GPU and of idle ones. A pool
// without other GPUs is selected as a whole.
func TestDefragKeeps(t *testing.T) {
	for _, row := range []struct {
		name  string
		nodes string
		pods  []string
		want  string
	}{
		{"a share", "a b c", []string{"a/0 5Gi", "a/1 6Gi", "b/0 whole"}, "a/0, b/1, c"},
		{"the first GPU of its pool was idle before", "a b c", []string{"b/1 5Gi", "c/0 6Gi"}, "b, a, c/1"},
		{"a partition", "m", []string{"m/0 2g.48gb", "m/1 1g.24gb"},
			"m/1/1g24gb-9, m/1/1g24gb-6, m/1/1g24gb-3, m/1/1g24gb-0"},
	} {
		s := onNodes(t, strings.Fields(row.nodes)...)
		for i, hold := range row.pods {
			if !run(t, s, fmt.Sprint("x", i), "ReplicaSet", hold) {
				t.Fatalf("%s: no room", row.name)
			}
		}
		d, err := Defrag(t.Context(), s, defragged)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, k := range d.Keep {
			text := *k.Pool
			if k.Device != nil {
				whole, part, _ := strings.Cut(*k.Device, "-mig-")
				text += fmt.Sprint("/", slices.Index(wholeGPUs(s, *k.Pool), whole))
				if part != "" {
					text += "/" + part
				}
			}
			all = append(all, text)
		}
		if got := strings.Join(all, ", "); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
	}
}

// randomPods returns a cluster with pods, most of which have one claim and can move.
func randomPods(t testing.TB, r *rand.Rand) *cluster.Snapshot {
	t.Helper()
	s := onNodes(t, [][]string{{"a"}, {"a", "b"}, {"a", "m"}, {"a", "b", "c"}}[r.IntN(4)]...)
	for _, n := range s.Nodes {
		n.Status.Allocatable["cpu"] = resource.MustParse(fleettest.Pick(r, "3", "4", "64"))
	}
	used := map[string]int64{}
	for i := range 3 + r.IntN(9) {
		node := s.Nodes[r.IntN(len(s.Nodes))]
		if cpu := node.Status.Allocatable["cpu"]; used[node.Name] == cpu.Value() {
			continue
		}
		hold := func() string {
			what := fleettest.Pick(r, "1Gi", "2Gi", "4Gi", "6Gi", "8Gi", "whole")
			if node.Name >= "m" {
				what = fleettest.Pick(r, "1g.24gb", "1g.24gb", "2g.48gb", "5Gi", "whole")
			}
			return fmt.Sprintf("%s/%d %s", node.Name, r.IntN(2), what)
		}
		holds := []string{hold()}
		if r.IntN(5) == 0 {
			holds = append(holds, hold())
		}
		before := len(s.Claims)
		if run(t, s, fmt.Sprintf("x%02d", i), fleettest.Pick(r, "ReplicaSet", "ReplicaSet", "ReplicaSet", ""),
			holds...) {
			used[node.Name]++
			continue
		}
		s.Claims = s.Claims[:before]
	}
	return s
}

// without returns the snapshot without the claims of the pod.
func without(s *cluster.Snapshot, p *corev1.Pod) *cluster.Snapshot {
	c := *s
	c.Claims = slices.DeleteFunc(slices.Clone(s.Claims), func(c *resourceapi.ResourceClaim) bool {
		return metav1.IsControlledBy(c, p)
	})
	return &c
}

// holders returns the pods that hold something of the GPU.
func holders(s *cluster.Snapshot, node, name string) []*corev1.Pod {
	var all []*corev1.Pod
	for _, c := range s.Claims {
		for _, r := range cluster.Results(c) {
			if r.Pool == node && gpu.ParentName(r.Device) == name {
				all = append(all, s.Pods[slices.IndexFunc(s.Pods, func(p *corev1.Pod) bool {
					return c.Status.ReservedFor[0].UID == p.UID
				})])
			}
		}
	}
	return slices.Compact(all)
}

// again returns a new claim like the old one.
func again(old *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c := old.DeepCopy()
	c.UID += "-again"
	c.Status.Allocation = nil
	return c
}

// elsewhere reports whether the pods, which hold one device each, fit on GPUs that are used and not the one. The CPU of
// nodes counts.
func elsewhere(t testing.TB, s *cluster.Snapshot, pods []*corev1.Pod, targets []string, on map[string]int64) bool {
	t.Helper()
	if len(pods) == 0 {
		return true
	}
	for i, p := range pods {
		others := slices.Delete(slices.Clone(pods), i, i+1)
		c := again(s.Claims[slices.IndexFunc(s.Claims, func(c *resourceapi.ResourceClaim) bool {
			return metav1.IsControlledBy(c, p)
		})])
		for _, target := range targets {
			node, name, _ := strings.Cut(target, "/")
			cpu := s.Nodes[slices.IndexFunc(s.Nodes, func(n *corev1.Node) bool { return n.Name == node })].
				Status.Allocatable["cpu"]
			rest := without(s, p)
			if on[node] == cpu.Value() || !holdOn(t, rest, node, name, c.DeepCopy()) {
				continue
			}
			on[node]++
			ok := elsewhere(t, rest, others, targets, on)
			on[node]--
			if ok {
				return true
			}
		}
	}
	return false
}

// TestDefragRandom replays plans without the planner, and looks for better ones.
func TestDefragRandom(t *testing.T) {
	plans, none := 0, 0
	for seed := range uint64(80) {
		s := randomPods(t, rand.New(rand.NewPCG(seed, 7)))
		d, err := Defrag(t.Context(), s, defragged)
		if err != nil {
			t.Fatal(err)
		}
		slim := *s
		fleettest.Shorten(&slim, schedule.AttributesFor(&slim)) // as it is read from the API server
		if second, err := Defrag(t.Context(), &slim, defragged); err != nil || !reflect.DeepEqual(second, d) {
			t.Errorf("seed %d: got\n%+v, %v\nthe second time, with slim slices, want\n%+v", seed, second, err, d)
		}
		var gpus, used []string
		for _, n := range s.Nodes {
			for _, name := range wholeGPUs(s, n.Name) {
				gpus = append(gpus, n.Name+"/"+name)
				if len(holders(s, n.Name, name)) > 0 {
					used = append(used, n.Name+"/"+name)
				}
			}
		}
		on := map[string]int64{}
		for _, p := range s.Pods {
			on[p.Spec.NodeName]++
		}
		if len(d.Frees) > 0 {
			plans++
			replay(t, seed, s, d, used)
		} else {
			none++
		}
		for _, ref := range gpus {
			node, name, _ := strings.Cut(ref, "/")
			pods := holders(s, node, name)
			whole := false
			for _, c := range s.Claims {
				r := c.Status.Allocation.Devices.Results[0]
				asked := c.Spec.Devices.Requests[0].Exactly.Capacity
				whole = whole || asked == nil && r.Pool == node && r.Device == name
			}
			if len(pods) == 0 || len(pods) > 3 || whole || len(d.Frees) > 0 && len(pods) >= len(d.Moves) ||
				slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
					return len(p.OwnerReferences) == 0 || len(p.Spec.ResourceClaims) > 1
				}) {
				continue
			}
			left := maps.Clone(on)
			left[node] -= int64(len(pods))
			others := slices.DeleteFunc(slices.Clone(used), func(other string) bool { return other == ref })
			if elsewhere(t, s, pods, others, left) {
				t.Errorf("seed %d: %s is free with %d moves, got %s", seed, ref, len(pods), planText(s, d))
			}
		}
	}
	if plans < 10 || none < 10 {
		t.Errorf("got %d plans and %d clusters without one, want 10 of each at least", plans, none)
	}
}

// replay moves the pods as the plan says.
func replay(t *testing.T, seed uint64, s *cluster.Snapshot, d *Defragmentation, used []string) {
	t.Helper()
	now := *s
	pods := map[string]int64{}
	for _, p := range s.Pods {
		pods[p.Spec.NodeName]++
	}
	claims := map[string]*resourceapi.ResourceClaim{}
	for _, c := range s.Claims {
		claims[c.Name] = c
	}
	for _, m := range d.Moves {
		p, _ := schedule.ByName(s.Pods).Find(m.Namespace, m.Pod)
		if len(p.OwnerReferences) == 0 {
			t.Errorf("seed %d: %s moves, and has no controller", seed, m.Pod)
		}
		now = *without(&now, p)
		pods[p.Spec.NodeName]--
	}
	for _, m := range d.Moves {
		pods[m.Devices[0].ToNode]++
		for i, device := range m.Devices {
			if device.ToNode != m.Devices[0].ToNode ||
				!slices.Contains(used, device.ToNode+"/"+gpu.ParentName(device.ToDevice)) {
				t.Errorf("seed %d: %s gets %s/%s, an idle GPU or one of another node", seed, m.Pod, device.ToNode,
					device.ToDevice)
			}
			if !holdOn(t, &now, device.ToNode, device.ToDevice, again(claims[m.Claims[i]])) {
				t.Errorf("seed %d: %s does not fit: %s", seed, m.Pod, planText(s, d))
			}
		}
	}
	for _, n := range s.Nodes {
		if cpu := n.Status.Allocatable["cpu"]; pods[n.Name] > cpu.Value() {
			t.Errorf("seed %d: node %s has %d pods, and CPU for %s", seed, n.Name, pods[n.Name], cpu.String())
		}
	}
	for _, g := range d.Frees {
		if left := holders(&now, g.Node, g.Name); len(left) > 0 || !slices.Contains(used, g.Ref()) {
			t.Errorf("seed %d: %s is not free afterwards, or was before", seed, g.Ref())
		}
	}
}

// Pods that demand more of a node than is considered are not moved: they might not fit where they should go.
func TestDefragLeavesPodsThatMightNotFitElsewhere(t *testing.T) {
	for name, change := range map[string]func(*corev1.PodSpec){
		"nothing more": func(*corev1.PodSpec) {},
		"a volume": func(p *corev1.PodSpec) {
			p.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "local"}}}}
		},
		"a port of the node": func(p *corev1.PodSpec) {
			p.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
		},
		"anti-affinity": func(p *corev1.PodSpec) {
			p.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
					{TopologyKey: corev1.LabelHostname}}}}
		},
		"a preference": func(p *corev1.PodSpec) {
			p.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{WhenUnsatisfiable: corev1.ScheduleAnyway}}
		},
	} {
		s := onNodes(t, "a", "b")
		for _, text := range []string{"x a/0 5Gi", "w a/1 whole", "y b/0 6Gi", "z b/1 whole"} {
			n, holds, _ := strings.Cut(text, " ")
			if !run(t, s, n, "StatefulSet", holds) {
				t.Fatal(text)
			}
		}
		for _, p := range s.Pods {
			if p.Name == "x" {
				change(&p.Spec)
			}
			if p.Name == "y" {
				p.OwnerReferences = nil // it stays
			}
		}
		d, err := Defrag(t.Context(), s, defragged)
		if err != nil {
			t.Fatal(err)
		}
		moved := slices.ContainsFunc(d.Moves, func(m PodMove) bool { return m.Pod == "x" })
		if want := name == "nothing more" || name == "a preference"; moved != want {
			t.Errorf("%s: x moves: %t, want %t", name, moved, want)
		}
	}
}
