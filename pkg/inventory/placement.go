// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// starts returns the starts of a profile in the order in which the scheduler should use them, so that larger profiles
// still fit. The scheduler takes the first free one. The next start is always the one that blocks the fewest remaining
// places of larger profiles, and of several the last. On 8 memory slices a 1g starts at 6, where no 2g can start.
func starts(p gpu.Profile, profiles []gpu.Profile) []int {
	var ordered []int
	left := larger(p, profiles)
	for rest := slices.Clone(p.Starts); len(rest) > 0; {
		best := 0
		for i, start := range rest {
			if blocked(p.Size, start, left) <= blocked(p.Size, rest[best], left) {
				best = i
			}
		}
		start := rest[best]
		ordered, rest = append(ordered, start), slices.Delete(rest, best, best+1)
		left = slices.DeleteFunc(left, func(s span) bool { return s.overlaps(start, p.Size) })
	}
	return ordered
}

// span is a range of memory slices.
type span struct{ start, size int }

func (s span) overlaps(start, size int) bool { return s.start < start+size && start < s.start+s.size }

// blocked counts the places that a partition at the start overlaps.
func blocked(size, start int, places []span) int {
	n := 0
	for _, s := range places {
		if s.overlaps(start, size) {
			n++
		}
	}
	return n
}

// larger returns the places of all profiles with more memory slices, or with as many and more compute slices.
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
