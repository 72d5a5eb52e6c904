// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// blockedFor is how long a GPU, or a place for a partition, counts as blocked. Meanwhile claims get others.
const blockedFor = time.Minute

// blockedGPUs records why GPUs could not be changed for a claim.
type blockedGPUs map[gpu.UUID]blocked

type blocked struct {
	why   string
	until time.Time // zero: for good
}

// note records the result of a change.
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

// all returns what prevents a change of GPUs.
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

// bindable reports whether a claim for a virtual machine may need the GPU bound to vfio-pci.
func bindable(d gpu.Device) bool {
	return !d.Lost && inventory.Passable(d) && len(d.VFIO.Functions) > 0 && !d.VFIO.Bound && len(d.VGPUs.Foreign()) == 0
}

// block returns the GPUs with what prevents a change of their MIG mode for a claim, or keeps them from virtual
// machines: a recent failure, or programs that belong to no claim. The text stays the same as long as anything does.
// Programs count when two discoveries in a row have found them, because the MPS server of a claim may end a moment
// after the claim. One discovery is enough if the GPU was blocked before. For the MIG mode the first one is enough;
// not for virtual machines, because another instance of the driver may have GPUs open then.
func (s *state) block(now time.Time, e *found) inventory.Inventory {
	gpus, used, open := slices.Clone(e.gpus), map[gpu.UUID]bool{}, map[gpu.UUID]bool{}
	for _, d := range gpus {
		if before, known := e.known.FindUUID(d.UUID); !known || hasChanged(before, d) {
			delete(s.blocked, d.UUID)
			delete(s.unbound, d.UUID)
		}
	}
	failed, unbound := s.blocked.all(now), s.unbound.all(now)
	refused := map[gpu.Placement]string{}
	maps.DeleteFunc(s.refused, func(_ gpu.Placement, b blocked) bool { return now.After(b.until) })
	for at, b := range s.refused {
		refused[at] = b.why
	}
	for i, d := range gpus {
		gpus[i].MIG.Refused = refused
		before, _ := e.known.FindUUID(d.UUID)
		if changesMode(d) {
			used[d.UUID] = e.users[d.UUID] != ""
			lasting := s.used == nil || s.used[d.UUID]
			gpus[i].Blocked = obstacle(failed[d.UUID], e.users[d.UUID], lasting, before.Blocked)
		}
		if bindable(d) {
			v, was := *d.VFIO, ""
			if before.VFIO != nil {
				was = before.VFIO.Blocked
			}
			open[d.UUID] = e.openers[d.UUID] != ""
			v.Blocked = obstacle(unbound[d.UUID], e.openers[d.UUID], s.open[d.UUID], was)
			gpus[i].VFIO = &v
		}
	}
	s.used, s.open = used, open
	return gpus
}

// hasChanged reports whether the MIG mode of the GPU has changed, or the GPU was reset, since the last discovery: what
// has prevented a change need not do so any more.
func hasChanged(before, d gpu.Device) bool {
	return !d.Lost && (before.Gone || before.InVM() && !d.InVM() || !before.Lost && before.MIG.Enabled != d.MIG.Enabled)
}

// obstacle returns what prevents a change: a failure, or programs that have been there before. was is the last text.
func obstacle(failed, programs string, lasting bool, was string) string { //nolint:revive // a fact, no choice
	why := failed
	if why == "" && (lasting || was != "") {
		why = programs
	}
	if why != "" {
		why = cmp.Or(was, why)
	}
	return why
}

// usersTimeout is the timeout for listing the programs that use a GPU.
const usersTimeout = 2 * time.Second

// usedBy names the programs that find finds on the GPU. Programs that it cannot see are found when a claim gets the
// GPU.
func usedBy(ctx context.Context, d gpu.Device, find func(context.Context, gpu.Device) ([]string, error)) string {
	ctx, cancel := context.WithTimeout(ctx, usersTimeout)
	defer cancel()
	users, err := find(ctx, d)
	if err != nil || len(users) == 0 {
		return ""
	}
	return "used by " + strings.Join(users, ", ")
}
