// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Layout is where the driver can create partitions, or vGPUs, on a GPU of one model. SlimSlice drops most of them from
// the slices of each GPU.
type Layout struct {
	total Counters
	slots map[string][]Slot // by profile, in the order in which they are published
}

// Slot is a possible partition, or vGPU, of any GPU of the model.
type Slot struct {
	Suffix   string // of the device's name, after that of the GPU
	Consumes Counters
}

// Counters are amounts by the name of the counter.
type Counters map[string]int64

// learn notes the places of a GPU's possible partitions that are not known yet. The caller holds v.mu.
func (v *View) learn(product string, d *resourceapi.Device) {
	if len(d.ConsumesCounters) == 0 || len(d.ConsumesCounters[0].Counters) == 0 { // or it is slim already
		return
	}
	l := v.layoutOf(product)
	suffix, profile := strings.TrimPrefix(d.Name, gpu.ParentName(d.Name)), gpu.PartitionProfile(d.Name)
	known := func(s Slot) bool { return s.Suffix == suffix }
	if gpu.IsPart(d.Name) && slices.ContainsFunc(l.slots[profile], known) {
		return
	}
	slot := Slot{suffix, Counters{}}
	for name, c := range d.ConsumesCounters[0].Counters {
		slot.Consumes[name] = c.Value.Value()
		l.total[name] = max(l.total[name], slot.Consumes[name]) // the whole GPU consumes all
	}
	if gpu.IsPart(d.Name) {
		l.slots[profile] = append(slices.Clip(l.slots[profile]), slot)
	}
}

// layoutOf returns the layout of the model, which may be learnt later. The caller holds v.mu.
func (v *View) layoutOf(product string) *Layout {
	l := v.layouts[product]
	if l == nil {
		l = &Layout{Counters{}, map[string][]Slot{}}
		v.layouts[product] = l
	}
	return l
}

// Slots returns the places for partitions of the profile on the GPU, as in the name of a device.
func (g *GPU) Slots(profile string) []Slot {
	if g.layout == nil {
		return nil
	}
	return g.layout.slots[profile]
}

// Left returns what is left of the counters of the GPU beside the devices of it.
func (g *GPU) Left(devices []string) Counters {
	left := Counters{}
	for name, n := range g.layout.total {
		left[name] = n
	}
	for _, device := range devices {
		suffix, own := strings.CutPrefix(device, g.Name)
		for _, s := range g.Slots(gpu.PartitionProfile(device)) {
			if own && s.Suffix == suffix {
				for name, n := range s.Consumes {
					left[name] -= n
				}
			}
		}
	}
	return left
}

// Suffice reports whether the counters suffice for a partition.
func (c Counters) Suffice(wanted Counters) bool {
	for name, n := range wanted {
		if c[name] < n {
			return false
		}
	}
	return true
}

// Full reports whether claims hold parts of the GPU, and no share or partition fits into what is left.
func (g *GPU) Full() bool {
	if len(g.Held) == 0 || g.use.shared {
		return g.use.shared && !g.Whole.Kind.leaves(g.use.Consumed)
	}
	var held []string
	for _, h := range g.Held {
		held = append(held, h.Device)
	}
	if slices.ContainsFunc(g.Partitions, func(p *Device) bool { return p.Exists() && !slices.Contains(held, p.Name) }) {
		return false
	}
	if g.layout != nil {
		left := g.Left(held)
		for _, slots := range g.layout.slots {
			if slices.ContainsFunc(slots, func(s Slot) bool { return left.Suffice(s.Consumes) }) {
				return false
			}
		}
	}
	return true
}
