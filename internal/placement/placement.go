// SPDX-License-Identifier: Apache-2.0

// Package placement scores the nodes on which a pod fits, by what the pod would cost the rest of the cluster there. A
// score is a pure function of numbers: who calls it predicts which GPUs of the node the pod gets.
package placement

import "math"

// Whole is all of a GPU. Amounts of GPUs are in thousandths, those of CPUs in thousandths of a core.
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
	CPU  int64 // that no pod has requested
	GPUs []GPU
}

// Take is what the pod would get of one GPU.
type Take struct {
	GPU    int   // index in Node.GPUs
	Amount int64 // at most Whole
}

// Pod is a pod on one node: what it requests, and the GPUs that it would get there. A pod without devices has no takes.
type Pod struct {
	CPU   int64
	Takes []Take
}

// Demand is what the pods of the cluster ask for, running or pending.
type Demand struct {
	// CPUPerGPU is how many thousandths of a core are requested with a thousandth of a GPU, by pods with GPUs.
	CPUPerGPU float64
	// Pressure of a model is near 1 if pods that accept no other model could fill all GPUs of the model, and 0 if none
	// asks for the model.
	Pressure map[string]float64
}

// Policy chooses the node.
type Policy int

const (
	Pack   Policy = iota // keep whole GPUs and whole nodes for those who need them
	Spread               // use the emptiest GPUs and nodes
)

// Score returns how good the node is for the pod, compared with the scores of other nodes for the same pod: higher is
// better.
func (p Policy) Score(n Node, pod Pod, d Demand) float64 {
	var idle, after, shape, pressure float64
	left := make([]int64, len(n.GPUs))
	for i, g := range n.GPUs {
		left[i] = g.Idle
		idle += float64(g.Idle)
	}
	after = idle
	for _, t := range pod.Takes {
		shape += fragment(left[t.GPU]) - fragment(left[t.GPU]-t.Amount)
		left[t.GPU] -= t.Amount
		after -= float64(t.Amount)
		pressure += d.Pressure[n.GPUs[t.GPU].Model] * float64(t.Amount) / Whole
	}
	if p == Spread {
		return after/largeGPUs + 0.1*float64(n.CPU-pod.CPU)/largeCPU
	}
	stranded := stranded(float64(n.CPU), idle, d) - stranded(float64(n.CPU-pod.CPU), after, d)
	fullness := 1 - 0.1*float64(n.CPU-pod.CPU)/largeCPU - 0.9*after/largeGPUs
	return stranded + shape + 0.3*fullness - pressure
}

// stranded returns how many idle GPUs cannot be used, because the node's idle CPU is too small for them.
func stranded(cpu, idle float64, d Demand) float64 {
	if d.CPUPerGPU <= 0 {
		return 0
	}
	return max(0, idle-cpu/d.CPUPerGPU) / Whole
}

// fragment returns the cost of what is left of a GPU that is used in part. Nothing is lost if all of it is idle.
func fragment(idle int64) float64 {
	if idle >= Whole || idle <= 0 {
		return 0
	}
	return math.Sqrt(float64(idle) / Whole)
}
