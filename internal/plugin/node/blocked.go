// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// blockedFor is how long a GPU counts as blocked. Meanwhile claims get other GPUs; then the change is tried again.
const blockedFor = time.Minute

// blockedGPUs records why the MIG mode of GPUs could not be changed for a claim.
type blockedGPUs map[gpu.UUID]blocked

type blocked struct {
	why   string
	until time.Time // zero: for good
}

// note records the result of a change of MIG mode.
func (b blockedGPUs) note(now time.Time, id gpu.UUID, err error) {
	switch {
	case err == nil:
		delete(b, id)
	case errors.Is(err, gpu.ErrMIGModeFixed):
		b[id] = blocked{why: err.Error()}
	case errors.Is(err, gpu.ErrBusy):
		b[id] = blocked{err.Error(), now.Add(blockedFor)}
	}
}

// all returns what prevents a change of the MIG mode of GPUs.
func (b blockedGPUs) all(now time.Time) map[gpu.UUID]string {
	all := map[gpu.UUID]string{}
	for id, known := range b {
		if known.until.IsZero() || !now.After(known.until) {
			all[id] = known.why
		}
	}
	return all
}

// changesMode reports whether a claim may need a change of the GPU's MIG mode.
func changesMode(d gpu.Device) bool {
	return !d.Lost && d.Use.Partitions == gpu.PartitionsDynamic && (!d.MIG.Enabled || len(d.MIG.Instances) == 0)
}

// block returns the GPUs with what prevents a change of their MIG mode for a claim: a recent failure, or programs that
// belong to no claim. The text stays the same as long as anything does. Programs count when two discoveries in a row
// have found them, because the MPS server of a claim may end a moment after the claim. One discovery is enough if it is
// the first, or if the GPU was blocked before.
func (s *state) block(now time.Time, e *found) inventory.Inventory {
	gpus, used, failed := slices.Clone(e.gpus), map[gpu.UUID]bool{}, s.blocked.all(now)
	for i, d := range gpus {
		if !changesMode(d) {
			continue
		}
		before, _ := e.known.FindUUID(d.UUID)
		why := failed[d.UUID]
		if why == "" {
			why = e.users[d.UUID]
			used[d.UUID] = why != ""
			if s.used != nil && !s.used[d.UUID] && before.Blocked == "" {
				why = ""
			}
		}
		if why != "" && before.Blocked != "" {
			why = before.Blocked
		}
		gpus[i].Blocked = why
	}
	s.used = used
	return gpus
}

// usersTimeout is the timeout for listing the programs that use a GPU.
const usersTimeout = 2 * time.Second

// usedBy names the programs that use the GPU. Programs that it cannot see are found when a claim gets the GPU.
func (n *Node) usedBy(ctx context.Context, d gpu.Device) string {
	ctx, cancel := context.WithTimeout(ctx, usersTimeout)
	defer cancel()
	users, err := n.Machine.Users(ctx, d)
	if err != nil || len(users) == 0 {
		return ""
	}
	return "used by " + strings.Join(users, ", ")
}
