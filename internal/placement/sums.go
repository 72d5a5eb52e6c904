// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"maps"
	"slices"
	"strings"
)

// Request is what a pod requests, on whatever node it runs.
type Request struct {
	CPU    int64
	Amount int64    // of all its GPUs together; 0 without GPUs
	Models []string // the models that it accepts, each once; none if it accepts all
}

// Sums are sums over the GPUs of a cluster, and over the pods that run or wait there: what Demand is computed from. The
// zero value is an empty cluster. Sums are not safe for concurrent use.
type Sums struct {
	cpu, amount int64            // requested by pods with GPUs
	named       map[string]named // requested by pods that name models, by these models
	gpus        map[string]int64 // number of GPUs by model
}

type named struct {
	models []string
	amount int64
}

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
	d := Demand{CPUPerGPU: float64(s.cpu) / float64(s.amount), Pressure: map[string]float64{}}
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
