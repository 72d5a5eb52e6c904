// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/placement"
)

// demandPeriod is how old the sums of what pods ask for may be. Scores of one pod are compared with one sum.
const demandPeriod = time.Second

// supplyPeriod is how old the sums of what nodes have may be: nodes come and go seldom.
const supplyPeriod = time.Minute

// assumed is the demand before any pod was seen. It matters less with each pod.
var assumed = placement.Request{CPU: 8 * 8000, Amount: 8 * placement.Whole}

// demand is what the pods ask for that nodes were scored for, until they are gone.
type demand struct {
	view     *cluster.View
	sums     placement.Sums
	requests map[types.UID]placement.Request
	gpus     map[string]int // as counted in sums, by model
	latest   placement.Demand
	at       time.Time
	supplied time.Time // when the supply was computed
}

func newDemand(v *cluster.View) *demand {
	d := &demand{view: v, requests: map[types.UID]placement.Request{}, gpus: map[string]int{}}
	d.sums.Add(assumed)
	return d
}

// add counts a pod, which may have been counted before.
func (d *demand) add(pod types.UID, r placement.Request) {
	d.remove(pod)
	if r.Amount > 0 {
		d.requests[pod] = r
		d.sums.Add(r)
	}
}

func (d *demand) remove(pod types.UID) {
	if r, ok := d.requests[pod]; ok {
		d.sums.Remove(r)
		delete(d.requests, pod)
	}
}

// now returns the demand, at most demandPeriod old. The supply is that of these nodes.
func (d *demand) now(now time.Time, nodes map[string]nodeUse) placement.Demand {
	if !d.at.IsZero() && now.Sub(d.at) < demandPeriod {
		return d.latest
	}
	if d.supplied.IsZero() || now.Sub(d.supplied) >= supplyPeriod {
		d.sums.Supply, d.supplied = d.supply(nodes), now
	}
	published := d.view.Models()
	for model := range d.gpus {
		for ; d.gpus[model] > published[model]; d.gpus[model]-- {
			d.sums.RemoveGPU(model)
		}
		if d.gpus[model] == 0 {
			delete(d.gpus, model)
		}
	}
	for model, n := range published {
		for ; d.gpus[model] < n; d.gpus[model]++ {
			d.sums.AddGPU(model)
		}
	}
	d.latest, d.at = d.sums.Demand(), now
	return d.latest
}

// supply returns what the nodes with GPUs have.
func (d *demand) supply(nodes map[string]nodeUse) placement.Supply {
	var all placement.Supply
	names := slices.Collect(maps.Keys(nodes))
	d.view.Nodes(names, func(i int, devices *cluster.NodeDevices) {
		if devices == nil || len(devices.GPUs) == 0 {
			return
		}
		all.CPU += nodes[names[i]].cpu
		all.Memory += nodes[names[i]].memory
		all.Amount += int64(len(devices.GPUs)) * placement.Whole
	})
	return all
}

// models returns the models that the requests accept, or none if they accept all.
func (a asked) models(published map[string]int) []string {
	accepted := map[string]bool{}
	for _, r := range a.Requests {
		for _, alternative := range r {
			if alternative.Foreign {
				return nil
			}
			for kind := range alternative.Takes {
				accepted[kind.Product()] = true
			}
		}
	}
	for model := range published {
		if !accepted[model] {
			return slices.Sorted(maps.Keys(accepted))
		}
	}
	return nil
}
