// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// The states. Each part of a GPU is in one at any time. Names and labels of metrics are an API for users.
const (
	Used     = "used"     // a claim holds it, and is not marked as idle
	Idle     = "idle"     // a claim holds it, and is marked as idle
	Reserved = "reserved" // kept for a team or a pod, the reason
	Sick     = "sick"     // a taint keeps claims away, the reason, or the GPU is not published
	Stranded = "stranded" // nobody holds it, and nobody can get it; the reason says why
	Free     = "free"
	Unknown  = "unknown" // nobody looked for longer than maxGap
)

// The reasons that are no taints.
const (
	unpublished   = "unpublished"   // the plugin of the node is away
	fragmentation = "fragmentation" // what is left of the GPU is too small for any share or partition
	preemption    = "preemption"
)

// Key is what one counter counts. Empty fields do not apply.
type Key struct {
	Model     string `json:",omitempty"`
	State     string `json:",omitempty"`
	Reason    string `json:",omitempty"`
	Device    string `json:",omitempty"` // gpu, share, or the profile of a partition
	Namespace string `json:",omitempty"` // of the claim
	Owner     string `json:",omitempty"` // of the claim
}

// part is a part of a GPU in one state. The sizes of all parts of a GPU add up to 1.
type part struct {
	Key
	Claim types.NamespacedName `json:",omitzero"` // that holds it
	Size  float64
}

// smallest is the smallest part that counts: sizes are rounded.
const smallest = 1e-9

// divide returns the parts of a GPU. A share, a partition and a replica are their part of the GPU's memory. On a GPU
// with unlimited sharing, all claims have equal parts.
func divide(g *cluster.GPU, held []cluster.Holding) (parts []part) {
	model, memory, against := g.Product(), float64(g.Memory()), g.Against()
	broken := slices.ContainsFunc(against, func(t resourceapi.DeviceTaint) bool {
		return t.Key == inventory.TaintLost || cluster.Evicts(t) && !cluster.Keeps(t)
	})
	unlimited := g.Whole != nil && g.Whole.Kind.Sharing() == gpu.Unlimited.String()
	sum := 0.0
	for _, h := range held {
		p := part{Key{model, Used, "", "gpu", h.Claim.Namespace, owner(h.Claim.Object)}, h.Claim.NamespacedName,
			1 / float64(len(held))}
		if !unlimited && memory > 0 {
			p.Size = float64(h.Memory) / memory
		}
		switch {
		case h.Profile != "":
			p.Device = h.Profile
		case len(h.ConsumedCapacity) > 0 && (unlimited || p.Size < 1):
			p.Device = "share"
		}
		switch {
		case broken:
			p.State, p.Reason = Sick, sickness(against)
		case cluster.DeviceIdleSince(h.Claim.Object, h.DeviceRequestAllocationResult) != nil:
			p.State = Idle
		}
		sum += p.Size
		parts = append(parts, p)
	}
	for i := range parts { // partitions that share memory count together at most as the GPU
		parts[i].Size /= max(1, sum)
	}
	if sum > 1-smallest {
		return parts
	}
	rest := part{Key: Key{Model: model, State: Free}, Size: 1 - sum}
	switch {
	case g.Kept():
		rest.State, rest.Reason = Reserved, keptFor(against)
	case len(against) > 0:
		rest.State, rest.Reason = Sick, sickness(against)
	case g.Full():
		rest.State, rest.Reason = Stranded, fragmentation
	}
	return append(parts, rest)
}

// owner returns the pod that the claim was made for, or else the claim, which any pods may use.
func owner(c *resourceapi.ResourceClaim) string {
	for _, o := range c.OwnerReferences {
		return o.Kind + "/" + o.Name
	}
	return "ResourceClaim/" + c.Name
}

// keptFor returns who the GPU is kept for.
func keptFor(against []resourceapi.DeviceTaint) string {
	var all []string
	for _, t := range against {
		if team := cluster.KeptFor(t); team != "" {
			all = append(all, team)
		}
	}
	if len(all) == 0 {
		return preemption
	}
	return slices.Min(all)
}

// sickness returns the taint that says what is wrong, as the driver names it: gpu-lost.
func sickness(against []resourceapi.DeviceTaint) string {
	var all []string
	for _, t := range against {
		if !cluster.Keeps(t) {
			all = append(all, t.Key[strings.LastIndex(t.Key, "/")+1:])
		}
	}
	return slices.Min(all)
}
