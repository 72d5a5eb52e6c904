// SPDX-License-Identifier: Apache-2.0

// Package sim replays a trace in a simulated cluster, without a scheduler, claims or slices: scores of nodes alone
// choose the node, and the pod gets the first GPUs that are idle enough.
package sim

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/gpudra/gpu-dra-driver/internal/placement"
	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

// Policy scores a node on which the pod fits: higher is better.
type Policy struct {
	Name  string
	score func(*cluster, int, request) float64
}

// request is a pod on a node: what it requests, and the GPUs that it gets there.
type request struct {
	trace.Pod
	takes []placement.Take
}

// placed is a pod that has a node.
type placed struct {
	trace.Pod
	node  int
	takes []placement.Take
}

// cluster is the nodes with what is idle, and the pods' demand.
type cluster struct {
	capacity []trace.Node
	nodes    []placement.Node
	demand   placement.Demand

	sums    placement.Sums
	changes int // of sums since the demand was computed
	policy  Policy
	rng     *rand.Rand

	// A score depends on the request, the node and the demand. It is kept until the node or the demand changes.
	shapes  map[string]int
	kept    [][]kept // by shape and node
	version []int    // of each node
	epoch   int      // of the demand
}

type kept struct {
	score   float64 // -Inf if the pod does not fit
	version int
	epoch   int
}

// refresh is the number of pods that come or go until the demand is computed again. The first pods are more important.
const refresh = 500

func newCluster(t trace.Trace, p Policy, seed uint64) *cluster {
	c := &cluster{capacity: t.Nodes, policy: p, rng: rand.New(rand.NewPCG(seed, 3)), shapes: map[string]int{},
		version: make([]int, len(t.Nodes)), epoch: 1}
	for _, n := range t.Nodes {
		if n.GPUs > 0 {
			c.sums.Supply.CPU += n.CPU
			c.sums.Supply.Memory += n.Memory
			c.sums.Supply.Amount += int64(n.GPUs) * placement.Whole
		}
		node := placement.Node{CPU: n.CPU, Memory: n.Memory}
		for range n.GPUs {
			node.GPUs = append(node.GPUs, placement.GPU{Model: n.Model, Idle: placement.Whole})
			c.sums.AddGPU(n.Model)
		}
		c.nodes = append(c.nodes, node)
	}
	for i := range c.version {
		c.version[i] = 1
	}
	return c
}

func requested(p trace.Pod) placement.Request {
	return placement.Request{CPU: p.CPU, Memory: p.Memory, GPUs: p.GPUs, Amount: p.Total(), Models: p.Models}
}

// arrive counts the pod's request, and leave forgets it.
func (c *cluster) arrive(p trace.Pod) { c.sums.Add(requested(p)); c.changed() }
func (c *cluster) leave(p trace.Pod)  { c.sums.Remove(requested(p)); c.changed() }

func (c *cluster) changed() {
	if c.changes++; c.changes == 20 || c.changes == 100 || c.changes%refresh == 0 {
		c.demand = c.sums.Demand()
		c.epoch++
	}
}

// place gives the pod the node with the highest score, a random one of equals as Kubernetes' scheduler does. It tells
// whether the pod fits anywhere.
func (c *cluster) place(p trace.Pod) (placed, bool) {
	shape := c.shape(p)
	best, ties, node := math.Inf(-1), 0, -1
	for i := range c.nodes {
		k := &shape[i]
		if k.version != c.version[i] || k.epoch != c.epoch {
			*k = kept{c.score(i, p), c.version[i], c.epoch}
		}
		switch {
		case math.IsInf(k.score, -1) || k.score < best:
			continue
		case k.score > best:
			best, ties, node = k.score, 1, i
		default:
			if ties++; c.rng.IntN(ties) == 0 {
				node = i
			}
		}
	}
	if node < 0 {
		return placed{}, false
	}
	takes, _ := c.fit(node, p)
	at := placed{Pod: p, node: node, takes: takes}
	c.take(at, 1)
	return at, true
}

// remove takes the pod away from its node.
func (c *cluster) remove(p placed) { c.take(p, -1) }

func (c *cluster) take(p placed, sign int64) {
	c.nodes[p.node].CPU -= sign * p.CPU
	c.nodes[p.node].Memory -= sign * p.Memory
	for _, t := range p.takes {
		c.nodes[p.node].GPUs[t.GPU].Idle -= sign * t.Amount
	}
	c.version[p.node]++
}

func (c *cluster) score(node int, p trace.Pod) float64 {
	takes, ok := c.fit(node, p)
	if !ok {
		return math.Inf(-1)
	}
	return c.policy.score(c, node, request{p, takes})
}

// fit returns the GPUs that the pod would get: the first that are idle enough. That is how the scheduler's allocator
// chooses devices.
func (c *cluster) fit(node int, p trace.Pod) ([]placement.Take, bool) {
	n := &c.nodes[node]
	if n.CPU < p.CPU || n.Memory < p.Memory || len(n.GPUs) < p.GPUs {
		return nil, false
	}
	if p.GPUs == 0 {
		return nil, true
	}
	if !p.Accepts(c.capacity[node].Model) {
		return nil, false
	}
	var takes []placement.Take
	for i, g := range n.GPUs {
		if g.Idle >= p.Amount {
			if takes = append(takes, placement.Take{GPU: i, Amount: p.Amount}); len(takes) == p.GPUs {
				return takes, true
			}
		}
	}
	return nil, false
}

func (c *cluster) shape(p trace.Pod) []kept {
	key := fmt.Sprint(p.CPU, p.Memory, p.GPUs, p.Amount, p.Models)
	i, ok := c.shapes[key]
	if !ok {
		i = len(c.kept)
		c.shapes[key] = i
		c.kept = append(c.kept, make([]kept, len(c.nodes)))
	}
	return c.kept[i]
}
