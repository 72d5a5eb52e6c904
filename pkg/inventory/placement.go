// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// starts are the places of a profile in the order in which they are to be taken, so that what is left has room for larger ones: the
// scheduler takes the first that is free. Next is always the place that destroys the fewest places of larger profiles that those before
// it have left, and of several the last. On 8 memory slices a 1g starts at 6, which no 2g can have.
func starts(p gpu.Profile, profiles []gpu.Profile) []int {
	var ordered []int
	left := larger(p, profiles)
	for rest := slices.Clone(p.Starts); len(rest) > 0; {
		best := 0
		for i, start := range rest {
			if harm(p.Size, start, left) <= harm(p.Size, rest[best], left) {
				best = i
			}
		}
		start := rest[best]
		ordered, rest = append(ordered, start), slices.Delete(rest, best, best+1)
		left = slices.DeleteFunc(left, func(s span) bool { return s.overlaps(start, p.Size) })
	}
	return ordered
}

// span is some memory slices in a row.
type span struct{ start, size int }

func (s span) overlaps(start, size int) bool { return s.start < start+size && start < s.start+s.size }

// harm is how many of these a partition at the start destroys.
func harm(size, start int, places []span) int {
	n := 0
	for _, s := range places {
		if s.overlaps(start, size) {
			n++
		}
	}
	return n
}

// larger are the places of all profiles that have more memory slices, or as many and more multiprocessors.
func larger(than gpu.Profile, profiles []gpu.Profile) []span {
	var places []span
	for _, p := range profiles {
		if p.Size < than.Size || p.Size == than.Size && p.Slices <= than.Slices {
			continue
		}
		for _, start := range p.Starts {
			places = append(places, span{start, p.Size})
		}
	}
	return places
}
