// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
)

const (
	// preemptAsked is how many questions to the allocator one plan may ask: a second of a processor.
	preemptAsked = 4_000
	// betterAsked is how many of them may look for cheaper victims than the first ones that are found.
	betterAsked = 1_000
	// preemptTimeout ends the search for want of time. The best set of victims so far is then the answer.
	preemptTimeout = 10 * time.Second
	// exactAsked is how many sets of victims of one node are tried beside the first one that is found.
	exactAsked = 400
	// maxSets is how many sets of victims of one node are compared.
	maxSets = 1 << 14
	// endsWithin is how soon a pod ends that counts as gone, and how long one that should have ended still does.
	endsWithin = 30 * time.Second
)

// PreemptOptions say what a plan considers beside the snapshot.
type PreemptOptions struct {
	Now     time.Time
	Budgets []*policyv1.PodDisruptionBudget
	// Volumes select the nodes that the volumes of the pod can be used on.
	Volumes []*corev1.NodeSelector
	// Single reports whether pods of the PodGroup may be evicted one by one. nil: groups go whole.
	Single func(namespace, group string) bool
	// Refused are pods that the API refuses to evict, and until when they are no victims.
	Refused map[types.UID]time.Time
}

// Preemption is the cheapest set of pods whose end makes room for a pod.
type Preemption struct {
	Node    string
	Victims []*corev1.Pod // those with a budget first, then the highest priority
	// Hold are the devices that the pod is to get and that its claims alone tolerate the taint of, with those that use
	// the same counters, and without those that another claim of the pod is to get.
	Hold []allocator.DeviceID
}

// PreemptionToken is the taint that the claim of a pod tolerates, and no other claim.
func PreemptionToken(pod types.UID) resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: cluster.PreemptionTaint, Value: string(pod),
		Effect: resourceapi.DeviceTaintEffectNoSchedule}
}

// ErrNoVictims means that the pod fits on no node, whatever pods of lower priority are gone.
var ErrNoVictims = errors.New("no set of pods of lower priority makes room")

// Preempt returns the cheapest set of pods of lower priority on one node without which the pod fits there. Of those
// that no PodDisruptionBudget forbids, it is the one with the lowest highest priority, then with the least loss (see
// there). nil: none is needed, perhaps because pods are ending, or none is known in time, or the pod waits for
// something else. The error is ErrNoVictims if no set helps.
//
// A claim is free once no pod uses it, so a shared one is free without all its pods. One that a pod with a controller
// names is not free without this pod: a new one would use the claim before.
func Preempt(ctx context.Context, s *cluster.Snapshot, pod *corev1.Pod, o PreemptOptions) (*Preemption, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	p := &preemptor{Question: &schedule.Question{Cluster: schedule.New(s), Context: ctx,
		MaxAsked: preemptAsked, Deadline: time.Now().Add(preemptTimeout)}, PreemptOptions: o, pod: pod,
		gone: map[types.UID]bool{}, exists: map[types.UID]bool{}, replaced: map[types.UID]bool{},
		onNodes: map[string][]*corev1.Pod{}, nominated: map[string]corev1.ResourceList{}}
	w, err := p.WorkloadOf(pod)
	if err == nil {
		err = cmp.Or(w.Validate(), w.TooLarge())
	}
	if err != nil || len(w.Claims) == 0 || needsOtherPods(pod) {
		return nil, nil //nolint:nilerr // the pod waits for something else
	}
	p.Workload = w
	p.addPods()
	p.addWanted()
	plans, fits, err := p.plans(s)
	if fits || err != nil {
		return nil, err
	}
	var best *victims
	for _, n := range plans {
		if best != nil && n.least.compare(best) >= 0 {
			break // the rest costs more
		}
		found, err := n.cheapest(best)
		if err != nil && !errors.Is(err, schedule.ErrLimit) {
			return nil, err
		}
		if best == nil && found != nil {
			p.MaxAsked = min(p.MaxAsked, p.Asked+betterAsked)
		}
		best = cmp.Or(found, best)
		if err != nil && best == nil {
			return nil, ctx.Err()
		}
		if err != nil {
			break
		}
	}
	if best == nil {
		return nil, ErrNoVictims
	}
	return best.preemption(), nil
}

// needsOtherPods reports whether the place of the pod depends on other pods in a way that is not simulated. A spread
// constraint without a selector depends on none: the chart's policy adds one (see lacksTopology).
func needsOtherPods(pod *corev1.Pod) bool {
	a := pod.Spec.Affinity
	return a != nil && a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 ||
		slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
			return c.WhenUnsatisfiable == corev1.DoNotSchedule && c.LabelSelector != nil
		})
}

// lacksTopology reports whether a spread constraint of the pod keeps it away from nodes without a label, as this one.
func lacksTopology(node *corev1.Node, pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
		_, ok := node.Labels[c.TopologyKey]
		return c.WhenUnsatisfiable == corev1.DoNotSchedule && !ok
	})
}

// preemptor plans the preemption for a pod on a snapshot.
type preemptor struct {
	*schedule.Question
	PreemptOptions
	pod       *corev1.Pod
	gone      map[types.UID]bool       // pods that are ending
	exists    map[types.UID]bool       // pods that have not ended
	replaced  map[types.UID]bool       // those that a controller replaces
	onNodes   map[string][]*corev1.Pod // the others, with those that are to come of at least the priority
	nominated map[string]corev1.ResourceList
	repelled  []repelling
	budgets   budgets
	parts     []cluster.Subrequest
	wanted    int64 // devices that the pod asks for, at least
}

// addPods fills in the pods of each node.
func (p *preemptor) addPods() {
	p.budgets = newBudgets(p.Budgets)
	nodes := map[string]*corev1.Node{}
	for _, n := range p.AllNodes {
		nodes[n.Name] = n
	}
	for _, pod := range p.Pods {
		node := pod.Spec.NodeName
		p.exists[pod.UID], p.replaced[pod.UID] = !cluster.Finished(pod), isReplaced(pod)
		switch {
		case cluster.Finished(pod) || pod.UID == p.pod.UID:
			continue
		case node == "":
			node = pod.Status.NominatedNodeName // the scheduler keeps what such a pod requests for it
			if node == "" || priorityOf(pod) < priorityOf(p.pod) || pod.DeletionTimestamp != nil {
				continue
			}
			p.nominated[node] = schedule.Sum(p.nominated[node], schedule.RequestsOf(pod))
		case p.endsSoon(pod):
			p.gone[pod.UID] = true
			p.onNodes[node] = append(p.onNodes[node], pod)
			continue
		}
		p.onNodes[node] = append(p.onNodes[node], pod)
		for _, key := range slices.Concat(repels(p.pod, pod), repels(pod, p.pod)) {
			if n := nodes[node]; n != nil {
				p.repelled = append(p.repelled, repelling{pod.UID, key, n.Labels[key]})
			}
		}
	}
}

// endsSoon reports whether the pod is about to end. Its deletionTimestamp is when its grace period ends, perhaps in a
// year.
func (p *preemptor) endsSoon(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	left := pod.DeletionTimestamp.Sub(p.Now)
	return -endsWithin < left && left <= endsWithin
}

func priorityOf(pod *corev1.Pod) int32 { return corev1helpers.PodPriority(pod) }

// isVictim reports whether the pod may be evicted for the preemptor.
func (p *preemptor) isVictim(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" || priorityOf(pod) >= priorityOf(p.pod) || pod.DeletionTimestamp != nil ||
		p.Now.Before(p.PreemptOptions.Refused[pod.UID]) {
		return false
	}
	if cluster.IsStatic(pod) {
		return false
	}
	of := p.budgets.of(pod)
	return len(of) == 0 || len(of) == 1 && p.budgets[of[0]].left > 0 // the API evicts no pod with two budgets
}

// isReplaced reports whether the pod has a controller that may create another one. Anybody may write an owner into a
// pod; of the kinds of v1, only one creates pods.
func isReplaced(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && (owner.APIVersion != "v1" || owner.Kind == "ReplicationController")
}

// plans returns the nodes that victims may make room on, the cheapest lower bound first, or that the pod fits now.
func (p *preemptor) plans(s *cluster.Snapshot) (all []*nodePlan, fits bool, err error) {
	groups := map[string][]*corev1.Pod{}
	for _, pods := range p.onNodes {
		for _, pod := range pods {
			if g := pod.Spec.SchedulingGroup; g != nil && !p.gone[pod.UID] {
				key := pod.Namespace + "/" + ptr.Deref(g.PodGroupName, "")
				groups[key] = append(groups[key], pod)
			}
		}
	}
	for _, node := range p.AllNodes {
		n := p.planOn(node, groups)
		if n == nil {
			continue
		}
		if n.need <= 0 {
			switch found, err := n.fits(nil); {
			case err != nil:
				return nil, false, err
			case found != nil || n.own.Slow > 0: // or it is not known in time
				return nil, true, nil
			}
		}
		all = append(all, n)
	}
	p.weigh(all, gpusOf(s))
	all = slices.DeleteFunc(all, func(n *nodePlan) bool { return !n.bound() })
	slices.SortStableFunc(all, func(a, b *nodePlan) int { return a.least.compare(b.least) })
	return all, false, nil
}

// weigh fills in what is lost with the units of all nodes. gpus is what pods hold.
func (p *preemptor) weigh(all []*nodePlan, gpus map[types.UID]int64) {
	for _, n := range all {
		for _, u := range n.units {
			for _, pod := range u.pods {
				u.lost += lossOf(pod, gpus[pod.UID], p.Now)
			}
		}
	}
}

// planOn returns what victims may be taken from the node, or nil if its labels or taints keep the pod away.
func (p *preemptor) planOn(node *corev1.Node, groups map[string][]*corev1.Pod) *nodePlan {
	group := p.GroupOf(node)
	group.Held = allocator.HeldBy(group.Holders, nil)
	own := *p.Cluster
	own.Used = map[string]corev1.ResourceList{}
	q := *p.Question
	q.Cluster = &own
	n := &nodePlan{preemptor: p, own: &q, node: node, group: group}
	for _, of := range p.Workload.Origins {
		for _, resource := range of.Extended {
			n.plugin = n.plugin || schedule.FromPlugin(node, resource)
		}
	}
	if len(p.Workload.Excludes(&own, node)) > 0 || slices.ContainsFunc(p.Volumes, func(s *corev1.NodeSelector) bool {
		ok, err := schedule.MatchesNode(s, node)
		return err != nil || !ok
	}) || lacksTopology(node, p.pod) {
		return nil // also without all pods
	}
	n.used = schedule.Sum(p.Used[node.Name], p.nominated[node.Name])
	for _, pod := range p.onNodes[node.Name] {
		if p.gone[pod.UID] {
			n.used = subtract(n.used, schedule.RequestsOf(pod))
		}
	}
	seen := map[types.UID]bool{}
	for _, pod := range p.onNodes[node.Name] {
		if p.gone[pod.UID] || seen[pod.UID] {
			continue
		}
		together := []*corev1.Pod{pod}
		if g := pod.Spec.SchedulingGroup; g != nil {
			name := ptr.Deref(g.PodGroupName, "")
			if p.Single == nil || !p.Single(pod.Namespace, name) {
				together = groups[pod.Namespace+"/"+name]
			}
		}
		u := &unit{pods: together, priority: priorityOf(together[0])}
		for _, of := range together {
			seen[of.UID] = true
			u.priority = max(u.priority, priorityOf(of))
			u.budgets = append(u.budgets, p.budgets.of(of)...)
		}
		if !slices.ContainsFunc(together, func(of *corev1.Pod) bool { return !p.isVictim(of) }) {
			n.units = append(n.units, u)
		}
	}
	n.addDevices()
	return n
}

// accepts reports whether a request of the pod accepts the device.
func (p *preemptor) accepts(d *candidateDevice) bool {
	if d.accepted == nil {
		d.accepted = ptr.To(slices.ContainsFunc(p.parts, func(part cluster.Subrequest) bool {
			if p.ClassByName[*part.Class] == nil {
				return true // the allocator says so
			}
			ok, err := p.Matches(part, d.slice, d.Device)
			return err != nil || ok && len(cluster.Untolerated(d.Taints, *part.Tolerations)) == 0
		}))
	}
	return *d.accepted
}

// addWanted fills in what the pod asks for.
func (p *preemptor) addWanted() {
	for _, claim := range p.Workload.Claims {
		p.parts = append(p.parts, cluster.Subrequests(&claim.Spec)...)
		least := map[int]int64{}
		for _, part := range cluster.Subrequests(&claim.Spec) {
			count := *part.Count
			if part.All() || part.Admin {
				count = 0
			}
			if known, ok := least[part.Request]; !ok || count < known {
				least[part.Request] = count
			}
		}
		for _, count := range least {
			p.wanted += count
		}
	}
}
