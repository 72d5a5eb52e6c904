// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// busyFor is how long a GPU counts as blocked after it was: claims are given other GPUs meanwhile, and then it is tried again.
const busyFor = time.Minute

// busyGPUs remembers who kept GPUs from being partitioned, or from being made whole.
type busyGPUs struct {
	mu    sync.Mutex
	known map[gpu.UUID]busy
}

type busy struct {
	why   string
	until time.Time // zero: for good
}

// note keeps what came of a change of the MIG mode.
func (b *busyGPUs) note(id gpu.UUID, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known == nil {
		b.known = map[gpu.UUID]busy{}
	}
	switch {
	case err == nil:
		delete(b.known, id)
	case errors.Is(err, gpu.ErrFixed):
		b.known[id] = busy{why: err.Error()}
	case errors.Is(err, gpu.ErrBusy):
		b.known[id] = busy{err.Error(), time.Now().Add(busyFor)}
	}
}

// of says what keeps the MIG mode of the GPU from changing; empty: nothing that is known.
func (b *busyGPUs) of(id gpu.UUID) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.known[id]
	if !known.until.IsZero() && time.Now().After(known.until) {
		return ""
	}
	return known.why
}

// block finds out what keeps the MIG mode of GPUs from changing for a claim: programs of nobody's claim that use one, and what was met
// lately in the way of a claim. While something does, the text stays that of the beginning.
func (m *machine) block(gpus inventory.Inventory, l ledger) inventory.Inventory {
	gpus = slices.Clone(gpus)
	for i, d := range gpus {
		if d.Lost || d.Use.Partitions != gpu.PartitionsDynamic || d.MIG.Enabled && len(d.MIG.Instances) > 0 {
			continue
		}
		now := m.busy.of(d.UUID)
		if now == "" && !l.touched(d.Name) {
			now = m.usedBy(d)
		}
		if before, ok := m.known.Find(d.Name); now != "" && ok && before.Blocked != "" {
			now = before.Blocked
		}
		gpus[i].Blocked = now
	}
	return gpus
}

// usedBy names the programs that use the GPU. Who cannot be seen is met when a claim has the GPU.
func (m *machine) usedBy(d gpu.Device) string {
	if m.config.Users == nil {
		return ""
	}
	users, err := m.config.Users(d)
	if err != nil || len(users) == 0 {
		return ""
	}
	return "used by " + strings.Join(users, ", ")
}

// remember gives GPUs in MIG mode what was known of them before: in this mode NVML tells less of what they are, and they have no NVLink.
func remember(gpus, known inventory.Inventory) inventory.Inventory {
	gpus = slices.Clone(gpus)
	for i, d := range gpus {
		if before, ok := known.Find(d.Name); ok && d.MIG.Enabled && before.UUID == d.UUID && !d.Lost {
			gpus[i].Product, gpus[i].Topology = before.Product, before.Topology
		}
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

// steady leaves out of whole GPUs, in a copy, what comes and goes with every claim that has a partition: it is nobody's business, and an inventory
// that is another one is looked at by everybody.
func steady(inv inventory.Inventory) inventory.Inventory {
	inv = slices.Clone(inv)
	for i := range inv {
		inv[i].MIG.Enabled, inv[i].MIG.Instances = false, nil
	}
	return inv
}
