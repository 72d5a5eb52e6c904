// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Request is what a pod requests, on whatever node it runs.
type Request struct {
	CPU    int64
	Memory int64    // of the host
	GPUs   int      // how many; 0 if it is not to count as a usual pod
	Amount int64    // of all its GPUs together; 0 without GPUs
	Models []string // the models that it accepts, each once; none if it accepts all
}

// Sums are sums over the GPUs of a cluster, and over the pods that run or wait there: what Demand is computed from. The
// zero value is an empty cluster. Sums are not safe for concurrent use.
type Sums struct {
	// Supply is what all nodes with GPUs have. Without it, nothing is scarce.
	Supply Supply

	cpu, amount int64            // requested by pods with GPUs
	usual       Supply           // requested by those of them that count as usual pods
	shapes      map[Shape]int64  // amounts of GPUs that are requested
	named       map[string]named // requested by pods that name models, by these models
	gpus        map[string]int64 // number of GPUs by model
}

type named struct {
	models []string
	amount int64
}

// Supply is CPU, host memory and the amount of GPUs.
type Supply struct{ CPU, Memory, Amount int64 }

// Nodes have enough CPU and host memory if pods with GPUs request up to this part of what there is for a GPU, and too
// little above the other one.
const (
	enough    = 0.65
	tooLittle = 0.75
	// maxUsual is how many shapes count as usual: those that request most GPUs.
	maxUsual = 20
)

// Add counts a pod. A pod without GPUs does not matter.
func (s *Sums) Add(r Request) { s.add(r, 1) }

// Remove forgets a pod. The request must be one that was added.
func (s *Sums) Remove(r Request) { s.add(r, -1) }

func (s *Sums) add(r Request, sign int64) {
	if r.Amount == 0 {
		return
	}
	s.cpu += sign * r.CPU
	s.amount += sign * r.Amount
	if r.GPUs > 0 {
		s.usual = Supply{s.usual.CPU + sign*r.CPU, s.usual.Memory + sign*r.Memory, s.usual.Amount + sign*r.Amount}
		if s.shapes == nil {
			s.shapes = map[Shape]int64{}
		}
		shape := Shape{r.CPU, r.Memory, r.GPUs, max(1, r.Amount/int64(r.GPUs))}
		if s.shapes[shape] += sign * r.Amount; s.shapes[shape] == 0 {
			delete(s.shapes, shape)
		}
	}
	if len(r.Models) == 0 {
		return
	}
	models := slices.Sorted(slices.Values(r.Models))
	key := strings.Join(models, "\n")
	n := named{models, s.named[key].amount + sign*r.Amount}
	if n.amount == 0 {
		delete(s.named, key)
		return
	}
	if s.named == nil {
		s.named = map[string]named{}
	}
	s.named[key] = n
}

// AddGPU counts a GPU of the model.
func (s *Sums) AddGPU(model string) {
	if s.gpus == nil {
		s.gpus = map[string]int64{}
	}
	s.gpus[model]++
}

// RemoveGPU forgets a GPU of the model that was added.
func (s *Sums) RemoveGPU(model string) {
	if s.gpus[model]--; s.gpus[model] == 0 {
		delete(s.gpus, model)
	}
}

// Demand returns what the pods that are counted ask for. It is new with each call, and does not change.
func (s *Sums) Demand() Demand {
	if s.amount == 0 {
		return Demand{}
	}
	d := Demand{CPUPerGPU: float64(s.cpu) / float64(s.amount), Pressure: map[string]float64{}, Scarcity: s.scarcity()}
	if d.Scarcity > 0 {
		d.Shapes = s.usualShapes()
	}
	var all int64
	for _, n := range s.gpus {
		all += n
	}
	for _, key := range slices.Sorted(maps.Keys(s.named)) { // sums of fractions depend on the order
		n := s.named[key]
		var supply int64
		for _, model := range n.models {
			supply += s.gpus[model]
		}
		if supply == 0 {
			continue
		}
		ofDemand, ofSupply := float64(n.amount)/float64(s.amount), float64(supply)/float64(all)
		for _, model := range n.models {
			d.Pressure[model] = min(1, d.Pressure[model]+ofDemand/ofSupply)
		}
	}
	return d
}

// scarcity compares what pods with GPUs request for a GPU with what there is for one.
func (s *Sums) scarcity() float64 {
	var most float64
	for _, of := range [][2]int64{{s.usual.CPU, s.Supply.CPU}, {s.usual.Memory, s.Supply.Memory}} {
		if of[1] > 0 && s.usual.Amount > 0 {
			most = max(most, float64(of[0])/float64(s.usual.Amount)*float64(s.Supply.Amount)/float64(of[1]))
		}
	}
	return min(1, max(0, (most-enough)/(tooLittle-enough)))
}

// usualShapes returns the usual shapes, in an order that depends on nothing else.
func (s *Sums) usualShapes() []Usual {
	shapes := slices.SortedFunc(maps.Keys(s.shapes), func(a, b Shape) int {
		return cmp.Or(cmp.Compare(s.shapes[b], s.shapes[a]), cmp.Compare(a.CPU, b.CPU), cmp.Compare(a.Memory, b.Memory),
			cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(a.Amount, b.Amount))
	})
	shapes = shapes[:min(len(shapes), maxUsual)]
	var sum int64
	for _, shape := range shapes {
		sum += s.shapes[shape]
	}
	var all []Usual
	for _, shape := range shapes {
		all = append(all, Usual{shape, float64(s.shapes[shape]) / float64(sum)})
	}
	return all
}
