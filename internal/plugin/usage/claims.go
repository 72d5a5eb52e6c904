// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Use is whether pods have used a device in the last minute.
type Use string

// The uses of a device.
const (
	Used    Use = "used"
	Idle    Use = "idle"
	Unknown Use = "unknown" // it could not be measured
)

// ClaimUse is the use of a device of a claim by all pods of the claim together.
type ClaimUse struct {
	Claim        sharing.Claim
	Pool, Device string
	ShareID      types.UID
	Part         float64 // of the memory of the GPU that the claim holds: 1 for a whole one
	Use          Use
}

// Claims measures which devices of claims their pods use, sorted. It leaves out claims of no container, and what only
// monitors. ok is false if the kubelet does not answer, or records of claims cannot be read.
func (c *Collector) Claims() (all []ClaimUse, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh(0)
	return c.claims, c.claims != nil
}

// usesOfClaims returns the use of each device that a claim of these pods holds. It is that of all containers of a pod
// together, because a pod is evicted as a whole.
func (c *Collector) usesOfClaims(pods []listedPod, found table, inv inventory.Inventory) []ClaimUse {
	uses := map[ClaimUse]Use{} // by all other fields
	for _, pod := range pods {
		for _, container := range pod.containers {
			for _, h := range container.held {
				if h.AdminAccess {
					continue
				}
				key := ClaimUse{Claim: h.claim, Pool: h.Pool, Device: h.Device, ShareID: h.ShareID,
					Part: partOf(h.Assignment, inv)}
				uses[key] = busier(uses[key], found.useOf(pod, h, c.IdleBelow))
			}
		}
	}
	all := make([]ClaimUse, 0, len(uses)) // not nil
	for key, use := range uses {
		key.Use = use
		all = append(all, key)
	}
	slices.SortFunc(all, func(a, b ClaimUse) int {
		return cmp.Or(cmp.Compare(a.Claim.UID, b.Claim.UID), cmp.Compare(a.Device, b.Device),
			cmp.Compare(a.ShareID, b.ShareID))
	})
	return all
}

// partOf returns which part of its GPU an assignment holds. It is 0 if the GPU is not known.
func partOf(a sharing.Assignment, inv inventory.Inventory) float64 {
	d, _ := inv.Find(a.Device)
	whole, _ := inv.Find(gpu.ParentName(a.Device))
	memory, _, ok := a.Part(d)
	if !ok || whole.Memory == 0 {
		return 0
	}
	return float64(memory) / float64(whole.Memory)
}

// busier returns the use of a device by two users.
func busier(a, b Use) Use {
	for _, use := range []Use{Used, Unknown} {
		if a == use || b == use {
			return use
		}
	}
	return Idle
}

// useOf returns whether containers of the pod use the device, also those that the kubelet does not list.
func (t table) useOf(pod listedPod, h holding, below int) Use {
	use := Use("")
	for p, one := range t {
		if p.namespace == pod.namespace && p.pod == pod.name && p.device == h.Device {
			use = busier(use, one.used.use(h.MPS != nil, below))
		}
	}
	return cmp.Or(use, Unknown)
}

// use returns whether the processes use the device. Under MPS, NVIDIA's driver may count what a process uses for the
// server, so a process there is never idle.
func (u *used) use(mps bool, below int) Use {
	switch {
	case u == nil:
		return Unknown
	case u.peak.percent >= max(below, 1):
		return Used
	case u.peak.others >= max(below, 1), u.peak.unmeasured, mps && u.peak.processes > 0:
		return Unknown
	}
	return Idle
}
