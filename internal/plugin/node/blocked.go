// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// blockedFor is how long a GPU counts as blocked. Meanwhile claims get other GPUs; then the change is tried again.
const blockedFor = time.Minute

// blockedGPUs records why the MIG mode of GPUs could not be changed for a claim.
type blockedGPUs struct {
	mu    sync.Mutex
	known map[gpu.UUID]blocked
}

type blocked struct {
	why   string
	until time.Time // zero: for good
}

// note records the result of a change of MIG mode.
func (b *blockedGPUs) note(id gpu.UUID, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known == nil {
		b.known = map[gpu.UUID]blocked{}
	}
	switch {
	case err == nil:
		delete(b.known, id)
	case errors.Is(err, gpu.ErrMIGModeFixed):
		b.known[id] = blocked{why: err.Error()}
	case errors.Is(err, gpu.ErrBusy):
		b.known[id] = blocked{err.Error(), time.Now().Add(blockedFor)}
	}
}

// of returns what prevents a change of the GPU's MIG mode; empty: nothing known.
func (b *blockedGPUs) of(id gpu.UUID) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.known[id]
	if !known.until.IsZero() && time.Now().After(known.until) {
		return ""
	}
	return known.why
}

// observedHardware records the results of MIG mode changes.
type observedHardware struct {
	claims.Hardware
	blocked *blockedGPUs
}

// Hardware wraps h, so that the Node sees the results of MIG mode changes.
func (n *Node) Hardware(h claims.Hardware) claims.Hardware { return observedHardware{h, &n.blocked} }

func (h observedHardware) Set(ctx context.Context, id gpu.UUID, s gpu.State) error {
	err := h.Hardware.Set(ctx, id, s)
	if s.MIG == gpu.MIGOn || s.MIG == gpu.MIGOff {
		h.blocked.note(id, err)
	}
	return err
}

// block sets what prevents a change of MIG mode for a claim: a recent failure, or programs that belong to no claim.
// While something does, the text does not change. Programs must be there at two looks, because the MPS server of a
// claim may end a moment after the claim; once is enough at the first look, and for a GPU that was blocked before.
func (n *Node) block(ctx context.Context, gpus inventory.Inventory, r records) inventory.Inventory {
	gpus = slices.Clone(gpus)
	used := map[gpu.UUID]bool{}
	for i, d := range gpus {
		if d.Lost || d.Use.Partitions != gpu.PartitionsDynamic || d.MIG.Enabled && len(d.MIG.Instances) > 0 {
			continue
		}
		before, _ := n.known.FindUUID(d.UUID)
		now := n.blocked.of(d.UUID)
		if now == "" && !r.touches(d.Name) {
			now = n.usedBy(ctx, d)
			used[d.UUID] = now != ""
			if n.used != nil && !n.used[d.UUID] && before.Blocked == "" {
				now = ""
			}
		}
		if now != "" && before.Blocked != "" {
			now = before.Blocked
		}
		gpus[i].Blocked = now
	}
	n.used = used
	return gpus
}

// usersTimeout is the timeout for listing the programs that use a GPU.
const usersTimeout = 2 * time.Second

// usedBy names the programs that use the GPU. Programs that it cannot see are found when a claim gets the GPU.
func (n *Node) usedBy(ctx context.Context, d gpu.Device) string {
	if n.Users == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, usersTimeout)
	defer cancel()
	users, err := n.Users(ctx, d)
	if err != nil || len(users) == 0 {
		return ""
	}
	return "used by " + strings.Join(users, ", ")
}
