// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"slices"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// offer decides of which GPUs the possible partitions are published. all: a pod waits for those of unused ones.
func (s *state) offer(now time.Time, all bool, a *actions) {
	r, before := s.basis.records, s.offered.GPUs
	s.offered = s.offered.Next(withTaints(*s.devices, s.health.Taints(*s.devices)), r.use, now, all,
		s.freed || r.incomplete != nil)
	if r.incomplete != nil { // every GPU may be held: the minute begins when the records can be read
		s.offered.Since = nil
	}
	if maps.Equal(s.offered.GPUs, before) {
		return
	}
	s.tainted = nil
	s.remember()
	a.Save = &s.known
}

// offeredBefore returns the GPUs of which possible partitions were published, as remember has noted.
func offeredBefore(known inventory.Inventory) map[string]bool {
	offered := map[string]bool{}
	for _, d := range known {
		if inventory.IsPossible(d) {
			offered[gpu.ParentName(d.Name)] = true
		}
	}
	return offered
}

// remember notes what is known of the devices when they are lost, and of which GPUs the possible partitions were
// published.
func (s *state) remember() {
	s.known = append(withoutOwnPartitions(s.basis.gpus, s.basis.records.own),
		partitionsOf(s.devices.Only(s.offered.GPUs))...)
}

// spare reports whether the possible partitions of the GPU are published, and no claim had any of it at the last
// discovery.
func (s *state) spare(name string) bool {
	return s.offered.GPUs[name] && s.basis.records.use(name) == inventory.Unused
}

// lacksSpare reports whether there is a model of which the possible partitions of no spare GPU are published.
func (s *state) lacksSpare() bool {
	spare := map[string]bool{}
	for _, d := range s.basis.gpus {
		if d.Use.OnDemand && d.Use.Partitions == gpu.PartitionsDynamic {
			spare[d.Product.Name] = spare[d.Product.Name] || s.spare(d.Name)
		}
	}
	return slices.Contains(slices.Collect(maps.Values(spare)), false)
}
