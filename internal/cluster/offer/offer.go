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
	if !slices.ContainsFunc(published, publishesOnDemand) {
		return published
	}
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
	ids := slices.SortedFunc(maps.Keys(pools), func(a, b cluster.PoolID) int {
		return cmp.Or(strings.Compare(a.Driver, b.Driver), strings.Compare(a.Pool, b.Pool))
	})
	for _, id := range ids {
		maps.Copy(shapes, pools[id].shapes(id))
	}
	more := map[cluster.PoolID][]*resourceapi.ResourceSlice{}
	for _, id := range ids {
		more[id] = pools[id].missing(id, shapes, rules)
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
	for _, id := range ids {
		all = append(all, more[id]...)
	}
	return all
}

// publishesOnDemand reports whether possible partitions of a GPU of the slice may be published later.
func publishesOnDemand(s *resourceapi.ResourceSlice) bool {
	return slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return onDemand(&d) })
}

func onDemand(d *resourceapi.Device) bool {
	return ptr.Deref(d.Attributes["partitionsOnDemand"].BoolValue, false)
}

// poolDevices is what is published of the GPUs of a pool, by name.
type poolDevices struct {
	spec   *resourceapi.ResourceSliceSpec // of one of its slices with GPUs
	gpus   map[string]*shape
	slices int
	order  []string          // their names, as published
	like   map[string]*shape // of those that get partitions, a GPU that has some
}

func (p *poolDevices) gpu(name string) *shape {
	if p.gpus[name] == nil {
		p.gpus[name] = &shape{}
		p.order = append(p.order, name)
	}
	return p.gpus[name]
}

func (p *poolDevices) read(s *resourceapi.ResourceSlice) {
	p.slices++
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

// shapes returns a GPU of each model of which the possible partitions are published. Of a pool that is just being
// written there are none.
func (p *poolDevices) shapes(id cluster.PoolID) map[model]shape {
	all := map[model]shape{}
	for _, name := range p.order {
		g := p.gpus[name]
		if g.whole == nil || len(g.partitions) == 0 || int64(p.slices) != p.spec.Pool.ResourceSliceCount ||
			g.counters == nil && len(g.partitions[0].ConsumesCounters[0].Counters) > 0 {
			continue
		}
		all[modelOf(id, g.whole)] = *g
	}
	return all
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
	return g.whole != nil && len(g.partitions) == 0 && onDemand(g.whole)
}

// missing returns slices with all possible partitions of the pool, in the order of inventory.WithPartitions, and with
// the counters of GPUs that have none; nil: the pool lacks none.
func (p *poolDevices) missing(id cluster.PoolID, shapes map[model]shape,
	rules []*resourceapi.DeviceTaintRule) []*resourceapi.ResourceSlice {
	p.like = map[string]*shape{}
	var devices []resourceapi.Device
	var counters []resourceapi.CounterSet
	own := p.shapes(id)
	for _, name := range slices.Backward(p.order) {
		g := p.gpus[name]
		like, known := own[modelOf(id, g.whole)]
		if !known {
			like, known = shapes[modelOf(id, g.whole)]
		}
		if !known || !g.lacks() {
			for _, d := range g.partitions {
				devices = append(devices, *d)
			}
			continue
		}
		p.like[name] = &like
		made := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: id.Driver, Pool: p.spec.Pool}}
		for _, d := range like.partitions {
			made.Spec.Devices = append(made.Spec.Devices, like.partition(d, g.whole, rules))
		}
		devices = append(devices, cluster.Tainted([]*resourceapi.ResourceSlice{made}, rules)[0].Spec.Devices...)
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
		s.Name = fmt.Sprintf("%s-%s-not-published-%d", id.Driver, id.Pool, i)
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
func (g *shape) partition(d, whole *resourceapi.Device, rules []*resourceapi.DeviceTaintRule) resourceapi.Device {
	name := whole.Name + strings.TrimPrefix(d.Name, g.whole.Name)
	made := resourceapi.Device{Name: name, Capacity: d.Capacity, ConsumesCounters: consumes(d, whole.Name),
		AllowMultipleAllocations: d.AllowMultipleAllocations}
	made.Attributes = d.Attributes // mostly they are equal: 1,000 nodes have 175,000 such devices
	copied := false
	for name, v := range d.Attributes {
		own, has := v, true
		switch {
		case ptr.Deref(v.StringValue, "") == d.Name: // its own domain of NVLinks, or its UUID while it does not exist
			own = resourceapi.DeviceAttribute{StringValue: &made.Name}
		case same(v, g.whole.Attributes[name]):
			own, has = whole.Attributes[name]
		}
		if has && same(v, own) {
			continue
		}
		if !copied {
			made.Attributes, copied = maps.Clone(d.Attributes), true
		}
		if made.Attributes[name] = own; !has {
			delete(made.Attributes, name)
		}
	}
	for _, t := range whole.Taints { // of its health
		if !slices.ContainsFunc(rules, func(r *resourceapi.DeviceTaintRule) bool { return r.Spec.Taint.Key == t.Key }) {
			made.Taints = append(made.Taints, t)
		}
	}
	return made
}

// same reports whether two attributes are equal. A list is equal to nothing.
func same(a, b resourceapi.DeviceAttribute) bool {
	return ptr.Equal(a.StringValue, b.StringValue) && ptr.Equal(a.IntValue, b.IntValue) &&
		ptr.Equal(a.BoolValue, b.BoolValue) && ptr.Equal(a.VersionValue, b.VersionValue) &&
		len(a.StringValues)+len(a.IntValues)+len(a.BoolValues)+len(a.VersionValues) == 0
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
