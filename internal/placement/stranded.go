// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Shape is what pods of one kind request: CPU, and the same amount of each of several GPUs.
type Shape struct {
	CPU    int64
	GPUs   int
	Amount int64 // of each GPU, at most Whole
}

// ShapeOf returns the shape of a pod on a node. A pod that takes different amounts counts with the largest one.
func ShapeOf(pod Pod) Shape {
	s := Shape{CPU: pod.CPU}
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
// has too little idle CPU, too few such GPUs, or too little of this GPU.
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
		if s.CPU > n.CPU || fits < s.GPUs {
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

// PodCPU returns how many thousandths of a core the pod requests.
func PodCPU(p *corev1.Pod) int64 {
	requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{UseStatusResources: true})
	return requests.Cpu().MilliValue()
}
