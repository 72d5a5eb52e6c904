// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// The thresholds of silent faults: those that no error tells, and that show only when a GPU is compared with what it
// was, and with others of its model.
const (
	// confirmations is how many looks in succession must see a silent fault. A link may be just training, and NVML may
	// report a slowdown for a moment when the clocks change.
	confirmations = 2
	// minOthers is how many other GPUs of the model must be there, all of them better, before they accuse a GPU. The
	// slots of a server's GPUs are equal; those of a workstation with two or three GPUs often are not.
	minOthers = 3
)

// Best is the best that a GPU has had in its slot. In another slot, it begins anew.
type Best struct {
	Slot gpu.PCIAddress `json:"slot"`
	Link gpu.PCIeLink   `json:"link,omitzero"` // while the GPU was not resting, or what others had when they accused it
	ECC  bool           `json:"ecc,omitempty"` // it was on
	// Accepted says that a person has accepted the link as it is: others do not accuse the GPU of it.
	Accepted bool `json:"accepted,omitempty"`
}

// suspects are silent faults that are not confirmed yet.
type suspects struct {
	look time.Time // the last one
	seen map[Cause]int
}

// silent returns the confirmed silent faults that the answer shows, and whether it does not tell about the PCIe link.
// It remembers the best of the GPU.
func (s *State) silent(id gpu.UUID, is gpu.Health) (found []problem, linkUnknown bool) {
	best := s.Best[id]
	if best.Slot != is.Slot {
		best = Best{Slot: is.Slot}
	}
	link, want, linkUnknown := degraded(is, best)
	for _, p := range []problem{{HardwareSlowdown, is.Slowdown}, {PCIeLinkDegraded, link},
		{NVLinkMissing, lacksNVLinks(is)}} {
		if p.detail != "" {
			found = append(found, p)
		}
	}
	if is.ECC == gpu.ECCDisabled && (best.ECC || enough(is.Others) &&
		!slices.ContainsFunc(is.Others, func(o gpu.Health) bool { return o.ECC != gpu.ECCEnabled })) {
		found = append(found, problem{ECCOff, ""})
	}
	found = s.confirmed(id, is.At, found)
	if !is.Resting {
		best.Link = each(best.Link, is.Link, maximum)
	}
	if slices.ContainsFunc(found, func(p problem) bool { return p.cause == PCIeLinkDegraded }) {
		best.Link = each(best.Link, want, maximum) // others that rest, or are gone, do not acquit it
	}
	best.ECC = best.ECC || is.ECC == gpu.ECCEnabled
	if s.Best == nil {
		s.Best = map[gpu.UUID]Best{}
	}
	s.Best[id] = best
	return found, linkUnknown
}

// confirmed returns the silent faults that enough looks in succession have seen, and those that are conditions already.
func (s *State) confirmed(id gpu.UUID, look time.Time, found []problem) []problem {
	was := s.suspects[id]
	if len(found) == 0 {
		delete(s.suspects, id)
		return nil
	}
	now := suspects{look, map[Cause]int{}}
	for _, p := range found {
		now.seen[p.cause] = was.seen[p.cause]
		if !look.Equal(was.look) { // otherwise it is the same answer again
			now.seen[p.cause]++
		}
	}
	if s.suspects == nil {
		s.suspects = map[gpu.UUID]suspects{}
	}
	s.suspects[id] = now
	return slices.DeleteFunc(found, func(p problem) bool {
		i := s.index(Subject{GPU: id}, p.cause)
		return now.seen[p.cause] < confirmations && (i < 0 || !s.Conditions[i].Active())
	})
}

// enough reports whether these are enough GPUs to accuse another one.
func enough(others []gpu.Health) bool { return len(others) >= minOthers }

// degraded says how the PCIe link is worse than it should be; empty: it is not, or unknown. In use, it should be as
// good as it was, and as that of every other GPU in use; at rest, it should have the lanes that every other GPU at rest
// has: GPUs at rest reduce the generation, each as it likes. It cannot be better than NVML's maximum.
func degraded(is gpu.Health, had Best) (detail string, want gpu.PCIeLink, unknown bool) {
	if is.Link.Width == 0 || is.Link.Generation == 0 {
		return "", want, true
	}
	best := each(had.Link, is.LinkMax, bounded)
	alike := slices.DeleteFunc(slices.Clone(is.Others), func(o gpu.Health) bool {
		return o.Resting != is.Resting || o.Link.Width == 0 || o.Link.Generation == 0
	})
	if enough(alike) && !had.Accepted {
		want = alike[0].Link
		for _, o := range alike[1:] {
			want = each(want, o.Link, minimum)
		}
		want = each(want, is.LinkMax, bounded)
		if is.Resting {
			want.Generation = 0
		}
	}
	if !is.Resting {
		want = each(want, best, maximum)
	}
	switch {
	case below(is.Link, want):
		return fmt.Sprintf("%s, want %s", text(is.Link), text(each(want, is.Link, maximum))), want, false
	case is.Resting && (best == gpu.PCIeLink{} || below(is.Link, best)):
		return "", want, true
	}
	return "", want, false
}

// lacksNVLinks says how many NVLinks to switches the GPU lacks, compared with every other GPU of the model; empty:
// none, or they lead to other GPUs, where each may have another number. A GPU may have links only once it has
// registered with the fabric.
func lacksNVLinks(is gpu.Health) string {
	if is.LinksUp == nil || len(is.LinkPeers) > 0 || is.FabricUnknown {
		return ""
	}
	var others []gpu.Health
	least := 0
	for _, o := range is.Others {
		if o.LinksUp == nil { // it is in MIG mode
			continue
		}
		if len(o.LinkPeers) > 0 || o.FabricUnknown {
			return ""
		}
		if n := len(o.LinksUp); len(others) == 0 || n < least {
			least = n
		}
		others = append(others, o)
	}
	if !enough(others) || len(is.LinksUp) >= least {
		return ""
	}
	return fmt.Sprintf("%d, want %d", len(is.LinksUp), least)
}

func text(l gpu.PCIeLink) string { return fmt.Sprintf("x%d generation %d", l.Width, l.Generation) }

// below reports whether the link is worse than the wanted one.
func below(l, want gpu.PCIeLink) bool { return l.Width < want.Width || l.Generation < want.Generation }

// each applies f to width and generation.
func each(a, b gpu.PCIeLink, f func(a, b int) int) gpu.PCIeLink {
	return gpu.PCIeLink{Width: f(a.Width, b.Width), Generation: f(a.Generation, b.Generation)}
}

func minimum(a, b int) int { return min(a, b) }
func maximum(a, b int) int { return max(a, b) }

// bounded returns a, at most b. 0 is unknown.
func bounded(a, b int) int {
	if b == 0 {
		return a
	}
	return min(a, b)
}
