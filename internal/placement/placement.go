// SPDX-License-Identifier: Apache-2.0

// Package placement scores the nodes on which a pod fits, by what the pod would cost the rest of the cluster there. A
// score is a pure function of numbers: who calls it predicts which GPUs of the node the pod gets.
package placement

import (
	"fmt"
	"math"
)

// Whole is all of a GPU. Amounts of GPUs are in thousandths, those of CPUs in thousandths of a core, and those of host
// memory in MiB.
const Whole = 1000

// The size of a large node, by which idle CPU and idle GPUs are compared.
const (
	largeCPU  = 128_000
	largeGPUs = 8 * Whole
)

// GPU is what the score needs to know of a GPU.
type GPU struct {
	Model string // the product name
	// Idle is how much of it new pods can get: Whole if nobody holds anything, 0 if a taint keeps new pods away.
	Idle int64
}

// Node is a node, before the pod is placed.
type Node struct {
	CPU    int64 // that no pod has requested
	Memory int64 // of the host, that no pod has requested
	GPUs   []GPU
}

// Take is what the pod would get of one GPU.
type Take struct {
	GPU    int   // index in Node.GPUs
	Amount int64 // at most Whole
}

// Pod is a pod on one node: what it requests, and the GPUs that it would get there. A pod without devices has no takes.
type Pod struct {
	CPU    int64
	Memory int64 // of the host
	Takes  []Take
}

// Demand is what the pods of the cluster ask for, running or pending. Sums computes it. With the zero value, GPUs need
// no CPU, and models are equal.
type Demand struct {
	// CPUPerGPU is how many thousandths of a core are requested with a thousandth of a GPU, by pods with GPUs.
	CPUPerGPU float64
	// Pressure of a model is the share of the requested GPUs that must be of this model, divided by the model's share
	// of all GPUs, and at most 1. It is 0 for a model that no pod names.
	Pressure map[string]float64
	// Scarcity is 0 if nodes with GPUs have enough CPU and host memory for them, and 1 if they have too little.
	Scarcity float64
	// Shapes are the usual shapes of pods with GPUs. Their shares add up to 1.
	Shapes []Usual
}

// Policy chooses the node.
type Policy int

// The policies. The zero value is Pack.
const (
	Pack   Policy = iota // keep whole GPUs and whole nodes for those who need them
	Spread               // use the emptiest GPUs and nodes
)

// String returns pack or spread.
func (p Policy) String() string {
	if p == Spread {
		return "spread"
	}
	return "pack"
}

// The weights of what a pod costs, in GPUs. docs/project/results/placement.md says how they were chosen.
const (
	// usableCPU is the part of the usual CPU without which an idle GPU counts as stranded. Many pods need less than the
	// mean. With 1, pods with much CPU go to nodes that still have all their CPU, which pods with many GPUs need.
	usableCPU = 0.7
	// leftoverWeight is the cost of the rest of a GPU that is used in part.
	leftoverWeight = 2
	// idleWeight is the cost of a large node whose CPU and GPUs are idle. It decides between nodes that are otherwise
	// equal: the fullest.
	idleWeight = 0.3
	// pressureWeight is the cost of a GPU of a model that others must have.
	pressureWeight = 1
)

// Cost is what a pod costs the cluster on a node, in GPUs. With Spread, there is only Idle: the negative part of a
// large node that stays idle.
type Cost struct {
	Stranded float64 // idle GPUs that lose the CPU they need
	Leftover float64 // rests of GPUs that are used in part
	Idle     float64 // what stays idle on the node
	Model    float64 // GPUs of models that other pods must have
}

// Score returns how good the node is for the pod, compared with the scores of other nodes for the same pod: higher is
// better.
func (c Cost) Score() float64 { return -(c.Stranded + c.Leftover + c.Idle + c.Model) }

func (c Cost) String() string {
	return fmt.Sprintf("stranded %.3f, leftover %.3f, idle %.3f, model %.3f", c.Stranded, c.Leftover, c.Idle,
		c.Model)
}

// Cost returns what the pod costs on the node.
func (p Policy) Cost(n Node, pod Pod, d Demand) Cost {
	var buffer [16]int64 // most nodes have no more GPUs, and need no memory from the heap
	left := buffer[:0]
	var idle, after, leftover, pressure float64
	for _, g := range n.GPUs {
		left = append(left, g.Idle)
		idle += float64(g.Idle)
	}
	after = idle
	strandedBefore := d.stranded(n.CPU, n.Memory, left)
	for _, t := range pod.Takes {
		leftover += fragment(left[t.GPU]-t.Amount) - fragment(left[t.GPU])
		left[t.GPU] -= t.Amount
		after -= float64(t.Amount)
		pressure += d.Pressure[n.GPUs[t.GPU].Model] * float64(t.Amount) / Whole
	}
	cpuAfter := float64(n.CPU - pod.CPU)
	switch {
	case p == Spread && len(pod.Takes) == 0:
		return Cost{Idle: -cpuAfter / largeCPU}
	case p == Spread:
		return Cost{Idle: -after/largeGPUs - 0.1*cpuAfter/largeCPU}
	case len(n.GPUs) == 0:
		return Cost{} // the best for a pod without GPUs. Such nodes are equal: other scores choose one
	}
	strandedMore := d.stranded(n.CPU-pod.CPU, n.Memory-pod.Memory, left) - strandedBefore
	idleAfter := 0.9*after/largeGPUs + 0.1*cpuAfter/largeCPU
	return Cost{strandedMore, leftoverWeight * leftover, idleWeight * idleAfter, pressureWeight * pressure}
}

// fragment returns the cost of what is left of a GPU that is used in part. Nothing is lost if all of it is idle. The
// root makes two small rests cost more than a large one, so the fullest GPU is filled first.
func fragment(idle int64) float64 {
	if idle >= Whole || idle <= 0 {
		return 0
	}
	return math.Sqrt(float64(idle) / Whole)
}
