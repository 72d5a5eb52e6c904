// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// partitioning is how a GPU is offered for which the administrator has said that. A GPU without MIG has nothing to choose. On its own,
// the driver keeps off a GPU that somebody else has partitioned, and partitions one that can be without a reset.
func partitioning(d gpu.Device, said gpu.Partitions, own func(gpu.Placement) bool) gpu.Partitions {
	possible := d.MIG.Enabled || d.MIG.Switchable
	foreign := func(p gpu.Partition) bool { return !own(p.Placement) }
	switch {
	case !d.MIG.Capable:
		return gpu.PartitionsAuto
	case said == gpu.PartitionsDynamic && !possible:
		return gpu.PartitionsNone
	case said != gpu.PartitionsAuto:
		return said
	case len(d.MIG.Instances) > 0 && !slices.ContainsFunc(d.MIG.Instances, func(p gpu.Partition) bool { return !foreign(p) }):
		return gpu.PartitionsStatic
	case possible:
		return gpu.PartitionsDynamic
	}
	return gpu.PartitionsNone
}

// busyFor is how long a GPU counts as blocked after it was: claims are given other GPUs meanwhile, and then it is tried again.
const busyFor = time.Minute

// busyGPUs remembers who kept GPUs from being partitioned.
type busyGPUs struct {
	mu    sync.Mutex
	why   map[gpu.UUID]string
	since map[gpu.UUID]time.Time
}

func (b *busyGPUs) note(id gpu.UUID, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.why == nil {
		b.why, b.since = map[gpu.UUID]string{}, map[gpu.UUID]time.Time{}
	}
	b.why[id], b.since[id] = why, time.Now()
}

// of says who keeps the GPU from being partitioned; empty: nobody.
func (b *busyGPUs) of(id gpu.UUID) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.since[id]) > busyFor {
		return ""
	}
	return b.why[id]
}

// block finds out who keeps GPUs from being partitioned: programs of nobody's claim that use one whose MIG mode is off, and who was
// seen in the way of a claim lately.
func (m *machine) block(gpus inventory.Inventory, l ledger) inventory.Inventory {
	gpus = slices.Clone(gpus)
	for i, d := range gpus {
		if d.Lost || d.Use.Partitions != gpu.PartitionsDynamic || d.MIG.Enabled {
			continue
		}
		gpus[i].Blocked = m.busy.of(d.UUID)
		if m.config.Processes == nil || l.touched(d.Name) {
			continue
		}
		processes, err := m.config.Processes(d)
		if err != nil || len(processes) == 0 {
			continue // who cannot be seen is met when a claim has the GPU
		}
		var names []string
		for _, p := range processes {
			names = append(names, fmt.Sprintf("process %d", p.PID))
		}
		gpus[i].Blocked = "used by " + strings.Join(names, ", ")
	}
	return gpus
}

// withoutMissing marks partitions that somebody has removed under claims as lost: they are not to be had, and the claim that has one
// can still be released.
func withoutMissing(inv inventory.Inventory, all []missing) inventory.Inventory {
	for i, d := range inv {
		if slices.ContainsFunc(all, func(m missing) bool { return m.device == d.Name }) {
			inv[i].Lost = true
		}
	}
	return inv
}

// steady leaves out of whole GPUs what comes and goes with every claim that has a partition: it is nobody's business, and an inventory
// that is another one is looked at by everybody.
func steady(inv inventory.Inventory) inventory.Inventory {
	for i := range inv {
		inv[i].MIG.Enabled, inv[i].MIG.Instances = false, nil
	}
	return inv
}
