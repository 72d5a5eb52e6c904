// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"

	"github.com/gpudra/gpu-dra-driver/internal/placement"
)

// The policies.
var (
	Default = Policy{"Kubernetes' default scores", defaultScores}
	BestFit = Policy{"BestFit", bestFit}
	Tight   = Policy{"tight", tight}
	Simple  = Policy{"`pack`, as if nothing were scarce", simple}
	Pack    = Policy{"this driver, `pack`", pack}
)

// pack is the driver's score.
func pack(c *cluster, node int, r request) float64 {
	pod := placement.Pod{CPU: r.CPU, Memory: r.Memory, Takes: r.takes}
	return placement.Pack.Cost(c.nodes[node], pod, c.demand).Score()
}

// simple is the driver's score as if CPU and host memory were enough everywhere.
func simple(c *cluster, node int, r request) float64 {
	d := c.demand
	d.Scarcity = 0
	pod := placement.Pod{CPU: r.CPU, Memory: r.Memory, Takes: r.takes}
	return placement.Pack.Cost(c.nodes[node], pod, d).Score()
}

// defaultScores is LeastAllocated and BalancedAllocation of Kubernetes' scheduler, on CPU and memory, weights equal.
func defaultScores(c *cluster, node int, r request) float64 {
	n := c.capacity[node]
	cpu := float64(c.nodes[node].CPU-r.CPU) / float64(n.CPU)
	memory := float64(c.nodes[node].Memory-r.Memory) / float64(n.Memory)
	return math.Floor(math.Floor(100*cpu)+math.Floor(100*memory))/2 + math.Floor(100*(1-math.Abs(cpu-memory)/2))
}

// bestFit chooses the node on which least CPU and least of GPUs is left, compared with the largest node.
func bestFit(c *cluster, node int, r request) float64 {
	return -0.5*float64(c.nodes[node].CPU-r.CPU)/128_000 - 0.5*float64(idle(c.nodes[node])-r.Total())/8_000
}

// tight chooses for a share the partly used GPU on which least is left, for everything else the node with the fewest
// whole idle GPUs.
func tight(c *cluster, node int, r request) float64 {
	n := c.nodes[node]
	free := 0
	for _, g := range n.GPUs {
		if g.Idle == placement.Whole {
			free++
		}
	}
	switch {
	case r.GPUs == 0:
		return -float64(idle(n))
	case r.Amount < placement.Whole && n.GPUs[r.takes[0].GPU].Idle < placement.Whole:
		return 1 - float64(n.GPUs[r.takes[0].GPU].Idle-r.Amount)/placement.Whole
	}
	return -float64(free)
}

func idle(n placement.Node) int64 {
	var sum int64
	for _, g := range n.GPUs {
		sum += g.Idle
	}
	return sum
}
