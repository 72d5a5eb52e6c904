// SPDX-License-Identifier: Apache-2.0

// Package bill says who had which GPUs, by replaying what the API server has told of slices, claims, rules and nodes.
// It imports nothing of the driver, so that what the driver's controller counts can be compared with it. A change
// counts at the time at which it happened.
package bill

import (
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

// Driver is the name of the driver.
const Driver = "gpu.nvidia.com"

// Oracle is what is known at one time, and what was counted until then.
type Oracle struct {
	Seconds map[string]float64 // of GPUs, by state and namespace: "used ml"
	GPUs    float64            // seconds of all GPUs

	at     time.Time
	slices map[string]*resourceapi.ResourceSlice
	claims map[string]*resourceapi.ResourceClaim
	rules  map[string]*resourceapi.DeviceTaintRule
	nodes  map[string]bool
	known  map[string]whole // GPUs that were published, by UUID
	parts  map[string]piece // devices that were published, by pool and name
}

// whole is a GPU.
type whole struct {
	node     string
	memory   float64
	device   *resourceapi.Device
	pool     string
	counters map[string]int64 // all that partitions can consume; nil: it has none
	listed   bool             // it is published now
}

// piece is a device: a GPU or a part of it.
type piece struct {
	uuid     string // of the GPU
	memory   float64
	counters map[string]int64
	isWhole  bool
}

// New returns an oracle that begins then.
func New(at time.Time) *Oracle {
	return &Oracle{Seconds: map[string]float64{}, at: at, slices: map[string]*resourceapi.ResourceSlice{},
		claims: map[string]*resourceapi.ResourceClaim{}, rules: map[string]*resourceapi.DeviceTaintRule{},
		nodes: map[string]bool{}, known: map[string]whole{}, parts: map[string]piece{}}
}

// Slice says that a slice is there, or with nil that it is gone.
func (o *Oracle) Slice(name string, s *resourceapi.ResourceSlice) {
	o.slices[name] = s
	if s == nil {
		delete(o.slices, name)
	}
	o.publish()
}

// Claim says that a claim is there, or with nil that it is gone.
func (o *Oracle) Claim(name string, c *resourceapi.ResourceClaim) {
	o.claims[name] = c
	if c == nil {
		delete(o.claims, name)
	}
}

// Rule says that a DeviceTaintRule is there, or with nil that it is gone.
func (o *Oracle) Rule(name string, r *resourceapi.DeviceTaintRule) {
	o.rules[name] = r
	if r == nil {
		delete(o.rules, name)
	}
}

// NodeAdded and NodeDeleted say what nodes there are.
func (o *Oracle) NodeAdded(name string) { o.nodes[name] = true }

// NodeDeleted forgets the GPUs of the node.
func (o *Oracle) NodeDeleted(name string) {
	delete(o.nodes, name)
	o.publish()
}

// publish reads all slices.
func (o *Oracle) publish() {
	for uuid, g := range o.known {
		if g.listed = false; o.nodes[g.node] {
			o.known[uuid] = g
		} else {
			delete(o.known, uuid)
		}
	}
	sets := map[string]map[string]int64{}
	for _, s := range o.slices {
		for _, set := range s.Spec.SharedCounters {
			sets[s.Spec.Pool.Name+"/"+set.Name] = values(set.Counters)
		}
	}
	for _, s := range o.slices {
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			text := func(name resourceapi.QualifiedName) string {
				if a := d.Attributes[name]; a.StringValue != nil {
					return *a.StringValue
				}
				return ""
			}
			q := d.Capacity["memory"].Value
			p := piece{text("parentUUID"), q.AsApproximateFloat64(), nil, text("type") == "gpu"}
			var set map[string]int64
			for _, c := range d.ConsumesCounters {
				p.counters, set = values(c.Counters), sets[s.Spec.Pool.Name+"/"+c.CounterSet]
			}
			if p.isWhole {
				p.uuid = text("uuid")
				o.known[p.uuid] = whole{*s.Spec.NodeName, p.memory, d, s.Spec.Pool.Name, set, true}
			}
			o.parts[s.Spec.Pool.Name+"/"+d.Name] = p
		}
	}
}

func values(of map[string]resourceapi.Counter) map[string]int64 {
	all := map[string]int64{}
	for name, c := range of {
		all[name] = c.Value.Value()
	}
	return all
}

// Until counts until then.
func (o *Oracle) Until(now time.Time) {
	seconds := now.Sub(o.at).Seconds()
	o.at = now
	left := map[string]float64{}
	used := map[string][]piece{} // what is held of each GPU
	for uuid := range o.known {
		left[uuid] = 1
	}
	for _, c := range o.claims {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			p := o.parts[r.Pool+"/"+r.Device]
			g, ok := o.known[p.uuid]
			if r.Driver != Driver || !ok {
				continue
			}
			size := p.memory / g.memory
			if q, shared := r.ConsumedCapacity["memory"]; shared {
				size = q.AsApproximateFloat64() / g.memory
				p.memory = q.AsApproximateFloat64()
			}
			state := "used"
			if idle(c, r) {
				state = "idle"
			}
			if t := o.taints(g); slices.ContainsFunc(t, func(t resourceapi.DeviceTaint) bool {
				return strings.HasSuffix(t.Key, "gpu-lost") || t.Effect == resourceapi.DeviceTaintEffectNoExecute
			}) {
				state = "sick"
			}
			o.Seconds[state+" "+c.Namespace] += size * seconds
			left[p.uuid] -= size
			used[p.uuid] = append(used[p.uuid], p)
		}
	}
	for uuid, g := range o.known {
		o.GPUs += seconds
		state, taints := "free", o.taints(g)
		switch {
		case !g.listed:
			state = "sick"
		case len(taints) > 0 && !slices.ContainsFunc(taints, func(t resourceapi.DeviceTaint) bool {
			return t.Key != "gpu.nvidia.com/reserved"
		}):
			state = "reserved"
		case len(taints) > 0:
			state = "sick"
		case len(used[uuid]) > 0 && !o.room(uuid, g, used[uuid]):
			state = "stranded"
		}
		if left[uuid] > 1e-9 {
			o.Seconds[state+" "] += left[uuid] * seconds
		}
	}
}

// room reports whether something of the GPU can be given out beside what is held.
func (o *Oracle) room(uuid string, g whole, held []piece) bool {
	left := map[string]int64{}
	memory := g.memory
	for name, n := range g.counters {
		left[name] = n
	}
	for _, p := range held {
		memory -= p.memory
		for name, n := range p.counters {
			left[name] -= n
		}
	}
	if held[0].isWhole { // shares: by the least that one takes
		policy := g.device.Capacity["memory"].RequestPolicy
		return policy != nil && memory >= policy.ValidRange.Min.AsApproximateFloat64()
	}
	for _, p := range o.parts {
		fits := p.uuid == uuid && !p.isWhole
		for name, n := range p.counters {
			fits = fits && left[name] >= n
		}
		if fits {
			return true
		}
	}
	return false
}

// taints returns what keeps new claims from the GPU.
func (o *Oracle) taints(g whole) (all []resourceapi.DeviceTaint) {
	all = append(all, g.device.Taints...)
	for _, r := range o.rules {
		if s := r.Spec.DeviceSelector; s != nil && s.Pool != nil && *s.Pool == g.pool && s.Device != nil &&
			*s.Device == g.device.Name {
			all = append(all, r.Spec.Taint)
		}
	}
	return slices.DeleteFunc(all, func(t resourceapi.DeviceTaint) bool {
		return t.Effect != resourceapi.DeviceTaintEffectNoSchedule && t.Effect != resourceapi.DeviceTaintEffectNoExecute
	})
}

// idle reports whether the claim is marked as not using the device.
func idle(c *resourceapi.ResourceClaim, r resourceapi.DeviceRequestAllocationResult) bool {
	for _, d := range c.Status.Devices {
		for _, condition := range d.Conditions {
			if d.Pool == r.Pool && d.Device == r.Device && condition.Type == "Idle" && condition.Status == "True" {
				return true
			}
		}
	}
	return false
}
