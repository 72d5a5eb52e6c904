// SPDX-License-Identifier: Apache-2.0

// Package offer adds the devices that nodes would publish to those that they do: a node publishes the possible
// partitions of a GPU when they are needed (inventory.Offer).
package offer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// model identifies GPUs that have the same possible partitions.
type model struct{ driver, product, memory string }

// shape is a GPU with its possible partitions, as published.
type shape struct {
	whole      *resourceapi.Device
	partitions []*resourceapi.Device
	counters   map[string]resourceapi.Counter // nil: the slices were read without
}

// All returns the slices, and in more slices of the same pools the possible partitions of GPUs whose nodes publish them
// on demand, as if they were published. They are like those of a GPU of the same model; of a model of which no GPU has
// some published, nothing is added. They have the taints of the rules, as published devices have them already. Slices
// of a pool with new ones are copies.
func All(published []*resourceapi.ResourceSlice, rules []*resourceapi.DeviceTaintRule) []*resourceapi.ResourceSlice {
	current := cluster.Current(published)
	pools := map[cluster.PoolID]*poolDevices{}
	shapes := map[model]shape{}
	for _, s := range current {
		id := cluster.PoolOf(s)
		if pools[id] == nil {
			pools[id] = &poolDevices{gpus: map[string]*shape{}}
		}
		pools[id].read(s)
	}
	lacks := false
	for id, p := range pools {
		for _, g := range p.gpus {
			if g.whole != nil && len(g.partitions) > 0 {
				shapes[modelOf(id, g.whole)] = *g
			}
			lacks = lacks || g.lacks()
		}
	}
	if !lacks {
		return published
	}
	more := map[cluster.PoolID][]*resourceapi.ResourceSlice{}
	for id, p := range pools {
		more[id] = cluster.Tainted(p.missing(id, shapes, rules), rules)
	}
	var all []*resourceapi.ResourceSlice
	for _, s := range published {
		id := cluster.PoolOf(s)
		if len(more[id]) == 0 || s.Spec.Pool.Generation != pools[id].spec.Pool.Generation {
			all = append(all, s)
			continue
		}
		all = append(all, pools[id].changed(s, len(more[id])))
	}
	for _, id := range slices.SortedFunc(maps.Keys(more), func(a, b cluster.PoolID) int {
		return strings.Compare(a.Driver+"/"+a.Pool, b.Driver+"/"+b.Pool)
	}) {
		all = append(all, more[id]...)
	}
	return all
}

// pool is what is published of the GPUs of a pool, by name.
type poolDevices struct {
	spec  *resourceapi.ResourceSliceSpec // of one of its slices with GPUs
	gpus  map[string]*shape
	order []string          // their names, as published
	like  map[string]*shape // of those that get partitions, a GPU that has some
}

func (p *poolDevices) gpu(name string) *shape {
	if p.gpus[name] == nil {
		p.gpus[name] = &shape{}
		p.order = append(p.order, name)
	}
	return p.gpus[name]
}

func (p *poolDevices) read(s *resourceapi.ResourceSlice) {
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		g := p.gpu(gpu.ParentName(d.Name))
		switch {
		case isPossible(d):
			g.partitions = append(g.partitions, d)
		case gpu.Type(text(d, "type")) == gpu.TypeGPU:
			g.whole, p.spec = d, &s.Spec
		}
	}
	for _, set := range s.Spec.SharedCounters {
		p.gpu(set.Name).counters = set.Counters
	}
}

// isPossible reports whether the device is a partition that the driver would make. One that exists has no counters.
func isPossible(d *resourceapi.Device) bool {
	return len(d.ConsumesCounters) > 0 && gpu.Type(text(d, "type")) == gpu.TypeMIG
}

// size returns how many memory slices a partition takes.
func size(d *resourceapi.Device) (n int) {
	for name := range d.ConsumesCounters[0].Counters {
		if strings.HasPrefix(name, inventory.MemorySlice) {
			n++
		}
	}
	return n
}

// lacks reports whether the GPU has possible partitions that are not published.
func (g *shape) lacks() bool {
	return g.whole != nil && len(g.partitions) == 0 &&
		ptr.Deref(g.whole.Attributes["partitionsOnDemand"].BoolValue, false)
}

// missing returns slices with all possible partitions of the pool, in the order of inventory.WithPartitions, and with
// the counters of GPUs that have none; nil: the pool lacks none.
func (p *poolDevices) missing(id cluster.PoolID, shapes map[model]shape,
	rules []*resourceapi.DeviceTaintRule) []*resourceapi.ResourceSlice {
	p.like = map[string]*shape{}
	var devices []resourceapi.Device
	var counters []resourceapi.CounterSet
	for _, name := range slices.Backward(p.order) {
		g := p.gpus[name]
		like, known := shapes[modelOf(id, g.whole)]
		if !known || !g.lacks() {
			for _, d := range g.partitions {
				devices = append(devices, *d)
			}
			continue
		}
		p.like[name] = &like
		for _, d := range like.partitions {
			devices = append(devices, like.partition(d, g.whole, rules))
		}
		if like.counters != nil {
			counters = append(counters, resourceapi.CounterSet{Name: name, Counters: like.counters})
		}
	}
	if len(p.like) == 0 {
		return nil
	}
	slices.SortStableFunc(devices, func(a, b resourceapi.Device) int {
		return cmp.Or(cmp.Compare(size(&a), size(&b)), cmp.Compare(text(&a, "profile"), text(&b, "profile")))
	})
	all := []*resourceapi.ResourceSlice{{Spec: resourceapi.ResourceSliceSpec{Devices: devices}}}
	if len(counters) > 0 {
		all = append(all, &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{SharedCounters: counters}})
	}
	for i, s := range all {
		s.Name = fmt.Sprintf("%s-not-published-%d", id.Pool, i)
		s.Spec.Driver, s.Spec.NodeName, s.Spec.Pool = p.spec.Driver, p.spec.NodeName, p.spec.Pool
		s.Spec.Pool.ResourceSliceCount += int64(len(all))
	}
	return all
}

// changed returns a slice of the pool as it is beside that many more.
func (p *poolDevices) changed(s *resourceapi.ResourceSlice, more int) *resourceapi.ResourceSlice {
	changed := *s
	changed.Spec.Pool.ResourceSliceCount += int64(more)
	changed.Spec.Devices = nil
	for _, d := range s.Spec.Devices {
		if isPossible(&d) {
			continue // another slice has it
		}
		if like := p.like[gpu.ParentName(d.Name)]; like != nil {
			d.ConsumesCounters = consumes(like.whole, gpu.ParentName(d.Name))
		}
		changed.Spec.Devices = append(changed.Spec.Devices, d)
	}
	changed.Spec.SharedCounters = nil
	for _, set := range s.Spec.SharedCounters {
		if p.like[set.Name] == nil { // else another slice has it
			changed.Spec.SharedCounters = append(changed.Spec.SharedCounters, set)
		}
	}
	return &changed
}

// partition returns a possible partition of a GPU, which is like one of another GPU of its model.
func (like *shape) partition(d, whole *resourceapi.Device, rules []*resourceapi.DeviceTaintRule) resourceapi.Device {
	name := whole.Name + strings.TrimPrefix(d.Name, like.whole.Name)
	made := resourceapi.Device{Name: name, Capacity: d.Capacity, ConsumesCounters: consumes(d, whole.Name),
		AllowMultipleAllocations: d.AllowMultipleAllocations}
	made.Attributes = make(map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, len(d.Attributes))
	for attribute, v := range d.Attributes {
		switch own, has := whole.Attributes[attribute]; {
		case ptr.Deref(v.StringValue, "") == d.Name: // its own domain of NVLinks, or its UUID while it does not exist
			v.StringValue = &made.Name
		case !equality.Semantic.DeepEqual(v, like.whole.Attributes[attribute]):
		case !has:
			continue
		default:
			v = own
		}
		made.Attributes[attribute] = v
	}
	for _, t := range whole.Taints { // of its health
		if !slices.ContainsFunc(rules, func(r *resourceapi.DeviceTaintRule) bool { return r.Spec.Taint.Key == t.Key }) {
			made.Taints = append(made.Taints, t)
		}
	}
	return made
}

// consumes returns what the device consumes, of the counters of another GPU.
func consumes(d *resourceapi.Device, name string) []resourceapi.DeviceCounterConsumption {
	all := slices.Clone(d.ConsumesCounters)
	for i := range all {
		all[i].CounterSet = name
	}
	return all
}

func modelOf(id cluster.PoolID, d *resourceapi.Device) model {
	if d == nil {
		return model{}
	}
	memory := d.Capacity["memory"].Value
	return model{id.Driver, text(d, "productName"), memory.String()}
}

func text(d *resourceapi.Device, name resourceapi.QualifiedName) string {
	return ptr.Deref(d.Attributes[name].StringValue, "")
}
