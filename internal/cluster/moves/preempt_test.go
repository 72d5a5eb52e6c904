// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/simulator/fleettest"
)

// budget returns a budget for pods with the label app.
func budgetFor(app string, allowed int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: app},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{
			"app": app}}, MinAvailable: ptr.To(intstr.FromInt32(1))},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed}}
}

// preemptCase is a random cluster, and a pod that waits on it.
type preemptCase struct {
	*cluster.Snapshot
	PreemptOptions
	pod *corev1.Pod
}

// randomPreemption returns up to three nodes with up to seven pods each.
func randomPreemption(t testing.TB, r *rand.Rand) *preemptCase {
	t.Helper()
	var nodes []clustertest.SimNode
	for i := range 1 + r.IntN(3) {
		nodes = append(nodes, clustertest.SimNode{Name: fmt.Sprintf("node-%d", i),
			Profile: fleettest.Pick(r, "t4-x2", "t4-x2", "l40s-x4", "rtxpro6000-x2"), Use: fleettest.Pick(r, exclusive,
				gpu.SharingMode{})})
	}
	c := &preemptCase{Snapshot: fleet(t, nodes...), PreemptOptions: PreemptOptions{Now: now}}
	for _, n := range c.Nodes {
		n.Status.Allocatable["cpu"] = resource.MustParse(fleettest.Pick(r, "6", "10", "64"))
		n.Labels["zone"] = fleettest.Pick(r, "x", "y")
		for i := range 2 + r.IntN(6) {
			c.addRandom(t, r, n.Name, fmt.Sprintf("%s-p%d", n.Name, i))
		}
	}
	for _, app := range []string{"a", "b"} {
		if r.IntN(2) == 0 {
			c.Budgets = append(c.Budgets, budgetFor(app, fleettest.Pick[int32](r, 0, 1, 1, 2)))
		}
		if r.IntN(8) == 0 { // the API evicts no pod with two
			c.Budgets = append(c.Budgets, budgetFor(app, 1))
		}
	}
	if r.IntN(8) == 0 { // devices are kept for another pod
		s := fleettest.Pick(r, slices.DeleteFunc(slices.Clone(c.Slices), func(s *resourceapi.ResourceSlice) bool {
			return len(s.Spec.Devices) == 0
		})...)
		d := fleettest.Pick(r, s.Spec.Devices...)
		c.Slices = cluster.Tainted(c.Slices, []*resourceapi.DeviceTaintRule{{Spec: resourceapi.DeviceTaintRuleSpec{
			Taint: PreemptionToken("other"), DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: &s.Spec.Driver,
				Pool: &s.Spec.Pool.Name, Device: &d.Name}}}})
	}
	if r.IntN(8) == 0 { // so are CPUs
		other := podOn("", "nominated", fleettest.Pick[int32](r, 1, 9), "3", 0)
		other.Status.NominatedNodeName = fleettest.Pick(r, c.Nodes...).Name
		c.Pods = append(c.Pods, other)
	}
	own := claim(t, "own", shareOf(fleettest.Pick(r, "whole", "whole", "5Gi", "12Gi", "1g.24gb", "2g.48gb")))
	if r.IntN(4) == 0 {
		own = claim(t, "own", gpus(fleettest.Pick(r, ", count: 2", ", count: 2", ", count: 3")))
	}
	for _, p := range cluster.Subrequests(&own.Spec) {
		*p.Tolerations = append(*p.Tolerations, resourceapi.DeviceToleration{Key: "gpu.nvidia.com/preemption",
			Operator: resourceapi.DeviceTolerationOpEqual, Value: "pod-own",
			Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	c.pod = podOn("", "own", fleettest.Pick[int32](r, 1, 2, 3, 4, 9), fleettest.Pick(r, "1", "1", "4"), 0, own)
	c.pod.Labels["app"] = "own"
	c.decorate(r, c.pod)
	c.Claims, c.Pods = append(c.Claims, own), append(c.Pods, c.pod)
	return c
}

// decorate gives a pod a port of the node, or an anti-affinity.
func (c *preemptCase) decorate(r *rand.Rand, p *corev1.Pod) {
	if r.IntN(8) == 0 {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80, Protocol: corev1.ProtocolTCP}}
	}
	if r.IntN(12) == 0 {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: fleettest.Pick(r, corev1.LabelHostname, "zone"),
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fleettest.Pick(r, "own",
					"a")}}}}}}
	}
}

// addRandom adds a pod to the node, unless there is no room for its claims.
func (c *preemptCase) addRandom(t testing.TB, r *rand.Rand, node, name string) {
	var claims []*resourceapi.ResourceClaim
	for i := range fleettest.Pick(r, 0, 1, 1, 1, 1, 2) {
		of := claim(t, fmt.Sprintf("%s-%d", name, i), shareOf(fleettest.Pick(r, "whole", "5Gi", "5Gi", "8Gi",
			"1g.24gb")))
		only := *c.Snapshot
		only.Nodes = slices.DeleteFunc(slices.Clone(c.Nodes), func(n *corev1.Node) bool { return n.Name != node })
		if !hold(t, &only, of) {
			return
		}
		c.Claims, claims = only.Claims, append(claims, of)
	}
	p := podOn(node, name, fleettest.Pick[int32](r, 0, 0, 1, 2, 3), fleettest.Pick(r, "500m", "1", "2"), r.IntN(600),
		claims...)
	p.Labels["app"] = fleettest.Pick(r, "a", "b", "c", "c")
	c.decorate(r, p)
	switch r.IntN(16) {
	case 0:
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	case 1:
		p.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(-time.Duration(r.IntN(60)) * time.Second)))
	case 2, 3: // of a gang
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("gang")}
	case 4: // its name is that of a claim
		for i, of := range p.Spec.ResourceClaims {
			p.Spec.ResourceClaims[i] = corev1.PodResourceClaim{Name: of.Name, ResourceClaimName: ptr.To(of.Name)}
		}
		if r.IntN(2) == 0 {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Controller: ptr.To(true)}}
		}
	case 7: // it has ended, and its claims will be free in a moment
		p.Status.Phase = corev1.PodSucceeded
	case 8: // it does not exist any more
		return
	case 5, 6: // a pod on the node uses its claim, too
		if len(claims) > 0 {
			second := podOn(node, name+"-too", fleettest.Pick[int32](r, 0, 1, 2), "500m", r.IntN(600), claims[0])
			c.Pods = append(c.Pods, second)
		}
	}
	c.Pods = append(c.Pods, p)
}

// cost is what victims cost, in the order in which that counts.
type cost struct {
	priority int32
	lost     int // thousandths of GPUs × seconds
	pods     int // for the text
}

// costOf adds four hours of a GPU for each victim to the time that its GPUs have worked.
func (c *preemptCase) costOf(victims []*corev1.Pod) (of cost) {
	of = cost{priority: *victims[0].Spec.Priority, pods: len(victims)}
	for _, v := range victims {
		gpus := 0
		for _, claim := range c.Claims {
			if slices.ContainsFunc(claim.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool {
				return r.UID == v.UID
			}) {
				gpus += c.thousandths(claim) / len(claim.Status.ReservedFor)
			}
		}
		of.priority = max(of.priority, *v.Spec.Priority)
		of.lost += 4*3600*1000 + max(10, gpus)*int(now.Sub(v.Status.StartTime.Time).Seconds())
	}
	return of
}

// thousandths returns how much of a GPU the claim holds, by the memory. It has one device at most.
func (c *preemptCase) thousandths(claim *resourceapi.ResourceClaim) int {
	results := cluster.Results(claim)
	if len(results) == 0 {
		return 0
	}
	memory := func(name string) int64 {
		for _, s := range c.Slices {
			for _, d := range s.Spec.Devices {
				if of, ok := d.Capacity["memory"]; ok && s.Spec.Pool.Name == results[0].Pool && d.Name == name {
					return of.Value.Value()
				}
			}
		}
		return 0
	}
	held := results[0].ConsumedCapacity["memory"]
	return int(cmp.Or(held.Value(), memory(results[0].Device)) * 1000 / memory(gpu.ParentName(results[0].Device)))
}

func (c cost) compare(o cost) int {
	return cmp.Or(cmp.Compare(c.priority, o.priority), cmp.Compare(c.lost, o.lost))
}

// ending reports whether the pod ends by itself.
func ending(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil && now.Sub(p.DeletionTimestamp.Time) < 30*time.Second
}

// fits reports whether the pod fits on the node without the victims. It shares nothing with the plan but the allocator.
func (c *preemptCase) fits(t testing.TB, node *corev1.Node, victims []*corev1.Pod) bool {
	t.Helper()
	out := map[types.UID]bool{}
	for _, v := range victims {
		out[v.UID] = true
	}
	free := node.Status.Allocatable.Cpu().MilliValue() - c.pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
	pods := node.Status.Allocatable.Pods().Value() - 1
	repels := func(a, b *corev1.Pod, there *corev1.Node) bool {
		if a.Spec.Affinity == nil {
			return false
		}
		term := a.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
		return b.Labels["app"] == term.LabelSelector.MatchLabels["app"] &&
			there.Labels[term.TopologyKey] == node.Labels[term.TopologyKey]
	}
	for _, p := range c.Pods {
		on := cmp.Or(p.Spec.NodeName, p.Status.NominatedNodeName)
		nominated := p.Spec.NodeName == "" && *p.Spec.Priority >= *c.pod.Spec.Priority
		if p == c.pod || out[p.UID] || ending(p) || p.Status.Phase == corev1.PodSucceeded || on == "" ||
			p.Spec.NodeName == "" && !nominated {
			continue
		}
		there := c.Nodes[slices.IndexFunc(c.Nodes, func(n *corev1.Node) bool { return n.Name == on })]
		if repels(p, c.pod, there) || repels(c.pod, p, there) {
			return false
		}
		if on != node.Name {
			continue
		}
		if len(p.Spec.Containers[0].Ports) > 0 && len(c.pod.Spec.Containers[0].Ports) > 0 {
			return false
		}
		free -= p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		pods--
	}
	if free < 0 || pods < 0 {
		return false
	}
	ended, own := map[types.UID]bool{}, []*resourceapi.ResourceClaim(nil)
	for _, claim := range c.Claims {
		if claim.Name == "own" {
			own = append(own, claim)
			continue
		}
		ended[claim.UID] = true
		for _, of := range claim.Status.ReservedFor {
			i := slices.IndexFunc(c.Pods, func(p *corev1.Pod) bool { return p.UID == of.UID })
			if i >= 0 && len(c.Pods[i].OwnerReferences) > 0 { // only pods that name claims have an owner here
				ended[claim.UID] = ended[claim.UID] && c.Pods[i].Status.Phase == corev1.PodSucceeded
				continue
			}
			ended[claim.UID] = ended[claim.UID] && (i < 0 || out[of.UID] || ending(c.Pods[i]) ||
				c.Pods[i].Status.Phase == corev1.PodSucceeded)
		}
	}
	only := *c.Snapshot
	only.Nodes = []*corev1.Node{node}
	on, _, err := judge(t, &only, ended, own...)
	if err != nil {
		t.Fatal(err)
	}
	return on != ""
}

// atoms returns the pods of the node that may be evicted, those that go together together.
func (c *preemptCase) atoms(node string) (all [][]*corev1.Pod) {
	may := func(p *corev1.Pod) bool {
		return p.Spec.NodeName != "" && *p.Spec.Priority < *c.pod.Spec.Priority && p.DeletionTimestamp == nil &&
			p.Annotations == nil && c.budgetsOf(p) < 2
	}
	var gang []*corev1.Pod
	here := false
	for _, p := range c.Pods {
		switch {
		case p.Status.Phase == corev1.PodSucceeded:
		case p.Spec.SchedulingGroup != nil && !ending(p):
			gang = append(gang, p)
			here = here || p.Spec.NodeName == node
		case p.Spec.NodeName == node && may(p):
			all = append(all, []*corev1.Pod{p})
		}
	}
	if here && !slices.ContainsFunc(gang, func(p *corev1.Pod) bool { return !may(p) }) {
		all = append(all, gang)
	}
	return all
}

// budgetsOf returns how many budgets the pod has.
func (c *preemptCase) budgetsOf(p *corev1.Pod) (n int) {
	for _, b := range c.Budgets {
		if p.Labels["app"] == b.Name {
			n++
		}
	}
	return n
}

// allowed reports whether the budgets allow the victims.
func (c *preemptCase) allowed(victims []*corev1.Pod) bool {
	for _, b := range c.Budgets {
		left := b.Status.DisruptionsAllowed
		for _, v := range victims {
			if v.Labels["app"] == b.Name {
				left--
			}
		}
		if left < 0 {
			return false
		}
	}
	return true
}

// oracle returns the least cost of all sets of victims of all nodes. It tries every set, the cheapest first.
func (c *preemptCase) oracle(t testing.TB) (least cost, room, without bool) {
	t.Helper()
	type set struct {
		node    *corev1.Node
		victims []*corev1.Pod
	}
	var sets []set
	for _, node := range c.Nodes {
		if c.fits(t, node, nil) {
			return cost{}, false, true
		}
		atoms := c.atoms(node.Name)
		for bits := 1; bits < 1<<len(atoms); bits++ {
			var victims []*corev1.Pod
			for i, a := range atoms {
				if bits&(1<<i) != 0 {
					victims = append(victims, a...)
				}
			}
			if c.allowed(victims) {
				sets = append(sets, set{node, victims})
			}
		}
	}
	slices.SortStableFunc(sets, func(a, b set) int { return c.costOf(a.victims).compare(c.costOf(b.victims)) })
	for _, s := range sets {
		if c.fits(t, s.node, s.victims) {
			return c.costOf(s.victims), true, false
		}
	}
	return cost{}, false, false
}

// text writes the case for a failure.
func (c *preemptCase) text() string {
	var b strings.Builder
	for _, n := range c.Nodes {
		fmt.Fprintf(&b, "%s %s cpu\n", n.Name, n.Status.Allocatable.Cpu())
	}
	for _, p := range c.Pods {
		fmt.Fprintf(&b, "%s on %s%s: priority %d, cpu %s, app %s, group %v, ends %v, since %v, owners %d, %v %v\n",
			p.Name, p.Spec.NodeName, p.Status.NominatedNodeName, *p.Spec.Priority,
			p.Spec.Containers[0].Resources.Requests.Cpu(), p.Labels["app"], p.Spec.SchedulingGroup != nil,
			p.DeletionTimestamp, p.Status.StartTime, len(p.OwnerReferences), p.Annotations, p.Spec.Containers[0].Ports)
	}
	for _, claim := range c.Claims {
		fmt.Fprintf(&b, "%s:", claim.Name)
		for _, r := range cluster.Results(claim) {
			fmt.Fprintf(&b, " %s/%s", r.Pool, r.Device)
		}
		for _, of := range claim.Status.ReservedFor {
			fmt.Fprintf(&b, " for %s", of.Name)
		}
		fmt.Fprintln(&b)
	}
	for _, budget := range c.Budgets {
		fmt.Fprintf(&b, "budget %s allows %d\n", budget.Name, budget.Status.DisruptionsAllowed)
	}
	return b.String()
}

// Pods that wait on random clusters get room by the cheapest of all sets of victims, if there is one.
// PREEMPT_CASES sets how many clusters, and PREEMPT_SEED the first seed.
func TestRandomPreemptions(t *testing.T) {
	cases, seed := 150, uint64(1)
	if text := os.Getenv("PREEMPT_CASES"); text != "" {
		cases, _ = strconv.Atoi(text)
	}
	if text := os.Getenv("PREEMPT_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	count := map[string]int{}
	for range cases {
		c := randomPreemption(t, rand.New(rand.NewPCG(seed, 0)))
		plan, err := Preempt(t.Context(), c.Snapshot, c.pod, c.PreemptOptions)
		if err != nil && !errors.Is(err, ErrNoVictims) {
			t.Fatalf("seed %d: %v", seed, err)
		}
		least, room, without := c.oracle(t)
		verdict := c.verdict(t, plan, least, room)
		if errors.Is(err, ErrNoVictims) && without {
			verdict = "it fits without victims, and the error says that no set helps"
		}
		switch {
		case without:
			count["fits without victims"]++
		case !room:
			count["no set of victims helps"]++
		default:
			count[fmt.Sprintf("%d victims", least.pods)]++
		}
		count["all"]++
		if verdict != "" {
			count["wrong"]++
			t.Errorf("seed %d: %s\n%s", seed, verdict, c.text())
		}
		seed++
	}
	t.Log(count)
	if count["no set of victims helps"] == 0 || count["1 victims"] == 0 || count["2 victims"] == 0 {
		t.Errorf("got %v, want cases of every kind", count)
	}
}

// verdict says what is wrong with the plan; "": nothing.
func (c *preemptCase) verdict(t testing.TB, plan *Preemption, least cost, room bool) string {
	switch {
	case plan == nil && room:
		return fmt.Sprintf("missed: a set of %+v helps", least)
	case plan == nil:
		return ""
	case !room:
		return fmt.Sprintf("%d victims, and none help or are needed", len(plan.Victims))
	}
	node := c.Nodes[slices.IndexFunc(c.Nodes, func(n *corev1.Node) bool { return n.Name == plan.Node })]
	names := ""
	for _, v := range plan.Victims {
		names += " " + v.Name
	}
	switch got := c.costOf(plan.Victims); {
	case !c.allowed(plan.Victims) || !c.fits(t, node, plan.Victims):
		return "it does not fit, or a budget forbids the victims" + names
	case got.compare(least) != 0:
		return fmt.Sprintf("got%s for %+v, want %+v", names, got, least)
	case !slices.ContainsFunc(plan.Hold, func(structured.DeviceID) bool { return true }):
		return "no device is kept"
	}
	return ""
}

// A claim that does not tolerate the taint gets its part of a GPU of which another claim of the pod has a part.
func TestHoldLeavesOtherClaims(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "node-0", Profile: "rtxpro6000-x2"})
	own, other := claim(t, "own", shareOf("1g.24gb")), claim(t, "other", shareOf("1g.24gb"))
	high := podOn("", "own", 9, "1", 0, own, other)
	own.Spec.Devices.Requests[0].Exactly.Tolerations = []resourceapi.DeviceToleration{{Key: "gpu.nvidia.com/preemption",
		Operator: resourceapi.DeviceTolerationOpEqual, Value: string(high.UID)}}
	s.Claims, s.Pods = []*resourceapi.ResourceClaim{own, other}, []*corev1.Pod{high}
	ended := map[types.UID]bool{}
	for i, priority := range []int32{1, 20} {
		held := claim(t, fmt.Sprint("held-", i), gpus(""))
		node, results, err := judge(t, s, nil, held)
		if node == "" || err != nil {
			t.Fatal(node, err)
		}
		held.Status.Allocation = &results[0]
		s.Claims, s.Pods = append(s.Claims, held), append(s.Pods, podOn("node-0", held.Name, priority, "1", 1, held))
		ended[held.UID] = priority == 1
	}
	plan, err := Preempt(t.Context(), s, high, PreemptOptions{Now: now})
	if err != nil || plan == nil || len(plan.Hold) < 2 {
		t.Fatalf("got %+v, %v, want a plan that keeps parts of a GPU", plan, err)
	}
	var rules []*resourceapi.DeviceTaintRule
	for _, id := range plan.Hold {
		rules = append(rules, &resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
			Taint: PreemptionToken(high.UID), DeviceSelector: &resourceapi.DeviceTaintSelector{
				Pool: ptr.To(id.Pool.String()), Device: ptr.To(id.Device.String())}}})
	}
	s.Slices = cluster.Tainted(s.Slices, rules)
	if node, _, err := judge(t, s, ended, own, other); node == "" || err != nil {
		t.Errorf("got no place for the pod among the %d devices that are kept for it (%v)", len(plan.Hold), err)
	}
}
