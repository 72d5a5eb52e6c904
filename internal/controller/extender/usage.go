// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/internal/placement"
)

// proposalLifetime is how long a pod is thought to come to the node with the best score. Then the scheduler has
// decided otherwise, or has given up.
const proposalLifetime = 5 * time.Second

// proposal is a pod on the node with the best score, until it is seen that the scheduler has put it there.
type proposal struct {
	node    string
	host    host
	takes   []fit.Take
	claims  []types.NamespacedName // that get the takes
	request placement.Request
	shape   placement.Shape
	bound   bool // the pod is seen on the node; its claims are not
	expires time.Time
}

// sliceUse is what a slice of another driver offers.
type sliceUse struct {
	node string
	gpus int
}

// usage is what the cluster's pods request of CPUs and host memory, and what was proposed.
type usage struct {
	view  *cluster.View
	now   func() time.Time
	count func(outcome string) // of a proposal

	mu        sync.Mutex
	nodes     map[string]nodeUse   // allocatable
	used      map[string]host      // requested by pods, by node
	slices    map[string]sliceUse  // of other drivers that have GPUs, by name
	foreign   map[string]int       // GPUs in these slices, by node
	pods      map[types.UID]podUse // also those without a node
	demand    *demand
	shapes    placement.Shapes // of the pods that nodes were scored for
	proposals map[types.UID]*proposal
	placed    chan placed // pods that get an event
}

func newUsage(v *cluster.View, now func() time.Time, count func(string)) *usage {
	return &usage{view: v, now: now, count: count, nodes: map[string]nodeUse{}, used: map[string]host{},
		slices: map[string]sliceUse{}, foreign: map[string]int{}, pods: map[types.UID]podUse{}, demand: newDemand(v),
		shapes: placement.Shapes{}, proposals: map[types.UID]*proposal{}, placed: make(chan placed, maxPlaced)}
}

// setNode adds or updates a node.
func (s *usage) setNode(n *nodeSummary) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[n.Name] = n.nodeUse
}

func (s *usage) deleteNode(n *nodeSummary) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, n.Name)
}

// setSlice adds or updates a slice of another driver.
func (s *usage) setSlice(slice *sliceSummary) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetSlice(slice.Name)
	if slice.node == "" || slice.gpus == 0 {
		return
	}
	s.slices[slice.Name] = sliceUse{slice.node, slice.gpus}
	s.foreign[slice.node] += slice.gpus
}

func (s *usage) deleteSlice(slice *sliceSummary) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetSlice(slice.Name)
}

// forgetSlice forgets the GPUs of the slice. The caller holds s.mu.
func (s *usage) forgetSlice(name string) {
	was := s.slices[name]
	if s.foreign[was.node] -= was.gpus; s.foreign[was.node] == 0 {
		delete(s.foreign, was.node)
	}
	delete(s.slices, name)
}

// others returns how many GPUs of the node are not this driver's: those of device plugins and of other drivers. Both
// may have the same ones. The caller holds s.mu.
func (s *usage) others(node string) int {
	return min(max(s.nodes[node].others, s.foreign[node]), maxOthers)
}

// setPod adds or updates a pod.
func (s *usage) setPod(p *podSummary) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.pods[p.UID]
	s.forget(p.UID)
	use := p.podUse
	use.scored = was.scored
	s.pods[p.UID] = use
	s.used[p.node] = s.used[p.node].plus(p.host)
	if proposed := s.proposals[p.UID]; proposed != nil {
		s.learn(p.UID, proposed)
	}
	if p.node == "" {
		return
	}
	s.see(p)
	if was.node == "" && s.pods[p.UID].scored && len(p.Annotations) > 0 {
		select {
		case s.placed <- placed{p.Namespace, p.Name, p.UID, p.Annotations}:
		default: // the API server is slower than the scheduler
		}
	}
}

// deletePod removes a pod, or one whose containers have ended.
func (s *usage) deletePod(p *podSummary) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(p.UID)
	s.demand.remove(p.UID)
	delete(s.proposals, p.UID)
}

// forget forgets what the pod requests. The caller holds s.mu.
func (s *usage) forget(uid types.UID) {
	was := s.pods[uid]
	if s.used[was.node] = s.used[was.node].minus(was.host); s.used[was.node] == (host{}) {
		delete(s.used, was.node)
	}
	delete(s.pods, uid)
}

// A pod with a GPU that asks for less than this is rare: on a node that has less, nobody gets its free GPUs.
var least = host{cpu: 1000, memory: 1024}

// short returns what the node lacks for pods with GPUs; empty: nothing, or it is not known.
func (s *usage) short(node string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	has, known := s.nodes[node]
	left := has.minus(s.used[node])
	switch {
	case !known:
		return ""
	case has.cordoned:
		return "cordoned"
	case left.cpu < least.cpu:
		return "cpu"
	case left.memory < least.memory:
		return "memory"
	}
	return ""
}

// learn counts what a pod asks for, and notes that it was scored, if it exists: anybody can ask for the scores of pods
// that do not, and nobody would say when such a pod is gone. The caller holds s.mu.
func (s *usage) learn(uid types.UID, p *proposal) {
	pod, exists := s.pods[uid]
	if !exists {
		return // it is counted as soon as it is seen
	}
	pod.scored = true
	s.pods[uid] = pod
	p.request.CPU, p.request.Memory, p.shape.CPU, p.shape.Memory = pod.cpu, pod.memory, pod.cpu, pod.memory
	s.demand.add(uid, p.request)
	s.shapes.See(p.shape, s.now())
}

// see ends the proposal for a pod that has a node: its CPUs and host memory count with the node's pods from now on, and
// its devices as soon as the view has its claims. The caller holds s.mu.
func (s *usage) see(p *podSummary) {
	proposed := s.proposals[p.UID]
	if proposed == nil || proposed.bound {
		return
	}
	if proposed.node != p.node {
		s.count(outcomeElsewhere)
		delete(s.proposals, p.UID)
		return
	}
	s.count(outcomeTrue)
	proposed.bound, proposed.host = true, host{}
	if p.extended != "" {
		proposed.claims = append(proposed.claims, types.NamespacedName{Namespace: p.Namespace, Name: p.extended})
	}
}

// propose remembers where the pod is about to come. The caller holds s.mu.
func (s *usage) propose(uid types.UID, p *proposal) {
	p.expires = s.now().Add(proposalLifetime)
	s.proposals[uid] = p
}

// ahead returns what pods are about to take of each node, without the pod itself. It forgets what has been seen, or is
// too old. The caller holds s.mu.
func (s *usage) ahead(except types.UID) map[string]*proposal {
	all := map[string]*proposal{}
	delete(s.proposals, except) // the scheduler asks again, so it has not come
	now := s.now()
	for uid, p := range s.proposals {
		held := len(p.claims) > 0 && !slices.ContainsFunc(p.claims, func(name types.NamespacedName) bool {
			_, held, _ := s.view.Pending(name)
			return !held
		})
		if held {
			p.takes = nil
		}
		expired := !now.Before(p.expires)
		if expired && !p.bound {
			s.count(outcomeExpired)
		}
		if expired || p.bound && (len(p.takes) == 0 || len(p.claims) == 0) {
			delete(s.proposals, uid)
			continue
		}
		of := all[p.node]
		if of == nil {
			of = &proposal{}
			all[p.node] = of
		}
		of.host = of.host.plus(p.host)
		of.takes = append(of.takes, p.takes...)
	}
	return all
}
