// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"maps"
	"slices"
	"time"
)

// Shape is what pods of one kind request: CPU, host memory, and the same amount of each of several GPUs.
type Shape struct {
	CPU    int64
	Memory int64 // of the host
	GPUs   int
	Amount int64 // of each GPU, at most Whole
}

// ShapeOf returns the shape of a pod on a node. A pod that takes different amounts counts with the largest one.
func ShapeOf(pod Pod) Shape {
	s := Shape{CPU: pod.CPU, Memory: pod.Memory}
	gpus := map[int]int64{}
	for _, t := range pod.Takes {
		gpus[t.GPU] += t.Amount
		s.Amount = max(s.Amount, gpus[t.GPU])
	}
	s.GPUs = len(gpus)
	return s
}

// maxShapes is how many shapes are kept. A cluster of 8,000 pods has about a hundred.
const maxShapes = 500

// Shapes remembers when shapes were last requested. The zero value has none. It is not safe for concurrent use.
type Shapes map[Shape]time.Time

// See remembers that a pod of this shape was seen. A pod without GPUs does not matter. If there are too many shapes,
// the one that was not seen for the longest time is forgotten.
func (s Shapes) See(shape Shape, now time.Time) {
	if shape.GPUs == 0 {
		return
	}
	s[shape] = now
	if len(s) > maxShapes {
		delete(s, slices.MinFunc(slices.Collect(maps.Keys(s)), func(a, b Shape) int { return s[a].Compare(s[b]) }))
	}
}

// Since returns the shapes that were seen after a time, and forgets the others.
func (s Shapes) Since(since time.Time) []Shape {
	maps.DeleteFunc(s, func(_ Shape, seen time.Time) bool { return seen.Before(since) })
	return slices.Collect(maps.Keys(s))
}

// Stranded returns how much of each GPU of the node is idle and fits no pod of these shapes, in thousandths: the node
// has too little idle CPU or host memory, too few such GPUs, or too little of this GPU.
func Stranded(n Node, shapes []Shape) []int64 {
	stranded := make([]int64, len(n.GPUs))
	for i, g := range n.GPUs {
		stranded[i] = g.Idle
	}
	for _, s := range shapes {
		fits := 0
		for _, g := range n.GPUs {
			if g.Idle >= s.Amount {
				fits++
			}
		}
		if s.CPU > n.CPU || s.Memory > n.Memory || fits < s.GPUs {
			continue
		}
		for i, g := range n.GPUs {
			if g.Idle >= s.Amount {
				stranded[i] = 0
			}
		}
	}
	return stranded
}

// Usual is a shape, and the part of all requested GPUs that pods of this shape request.
type Usual struct {
	Shape
	Share float64
}

// stranded returns the cost of a node's idle GPUs that cannot be used. Where CPU and host memory are enough, these are
// GPUs without the CPU that most pods need. Where they are scarce, it is what the usual pods could not use: the mean
// over the GPUs that pods request.
func (d Demand) stranded(cpu, memory int64, idle []int64) float64 {
	var all, simple float64
	var buffer [16]int64
	whole, parts := int64(0), buffer[:0]
	for _, amount := range idle {
		all += float64(amount)
		if amount >= Whole {
			whole++
		} else if amount > 0 {
			parts = append(parts, amount)
		}
	}
	if d.CPUPerGPU > 0 {
		simple = max(0, all-float64(cpu)/(usableCPU*d.CPUPerGPU))
	}
	if d.Scarcity == 0 || len(d.Shapes) == 0 {
		return simple / Whole
	}
	var lost float64
	for _, s := range d.Shapes {
		lost += s.Share * s.unusable(cpu, memory, whole, parts, all)
	}
	return ((1-d.Scarcity)*simple + d.Scarcity*lost) / Whole
}

// unusable returns how much of a node's idle GPUs pods of this shape alone could not use: the GPUs without CPU and host
// memory, plus those that whole pods leave. Counts of GPUs matter to the second part only, and it has steps.
func (s Shape) unusable(cpu, memory, whole int64, parts []int64, all float64) float64 {
	pods := whole
	if s.Amount < Whole {
		each := int64(1) // pods on a GPU; those with several count the GPUs that have room
		if s.GPUs == 1 {
			each = Whole / s.Amount
		}
		pods *= each
		for _, amount := range parts {
			pods += min(each, amount/s.Amount)
		}
	}
	cpu, memory = max(0, cpu), max(0, memory)
	size := int64(s.GPUs) * s.Amount
	pods, part := pods/int64(s.GPUs), all/float64(size)
	if s.CPU > 0 {
		pods, part = min(pods, cpu/s.CPU), min(part, float64(cpu)/float64(s.CPU))
	}
	if s.Memory > 0 {
		pods, part = min(pods, memory/s.Memory), min(part, float64(memory)/float64(s.Memory))
	}
	return 2*all - (float64(pods)+part)*float64(size)
}
