// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/gpudra/gpu-dra-driver/internal/placement"
)

// scored is the score of a node.
type scored struct {
	node  string
	fits  bool
	rank  int // of the alternatives that the pod gets; less is better, whatever the score
	score float64
	cost  placement.Cost // the terms of the score

	points int64 // what the scheduler gets
}

// better reports whether the pod should rather come to this node. Of equal ones, the name decides: the scheduler names
// them in another order each time.
func (s scored) better(other scored) bool {
	return cmp.Or(cmp.Compare(s.rank, other.rank), cmp.Compare(other.score, s.score),
		cmp.Compare(s.node, other.node)) < 0
}

// explain says why the three best nodes are the best.
func explain(all []scored) (texts []string) {
	sorted := slices.DeleteFunc(slices.Clone(all), func(s scored) bool { return !s.fits })
	slices.SortFunc(sorted, func(a, b scored) int {
		if a.better(b) {
			return -1
		}
		return 1
	})
	for _, s := range sorted[:min(3, len(sorted))] {
		texts = append(texts, fmt.Sprintf("%s: %d points, cost %s", s.node, s.points, s.cost))
	}
	return texts
}

// pointsOfGPU is how many points a node loses for each GPU that the pod costs more there than on the best node. With
// 0.05 GPU that is 200 of the scheduler's points: as much as spreading of replicas counts, and more than other scores.
const pointsOfGPU = 4 * MaxScore

// scale sets the points, from 0 for a node where the pod does not fit to MaxScore for the best node. Only that node
// gets MaxScore, because the scheduler picks one of equal nodes at random, and the next pod is scored as if the best
// node was taken. The others lose points for what they cost more, whatever other nodes there are: nodes that are almost
// equal are left to the scheduler's scores. Each rank has a part of the range.
func scale(all []scored, best int) {
	most := map[int]float64{} // the best score, by rank
	for _, s := range all {
		if of, ok := most[s.rank]; s.fits && (!ok || s.score > of) {
			most[s.rank] = s.score
		}
	}
	ranks := slices.Sorted(maps.Keys(most))
	for i := range all {
		s := &all[i]
		if !s.fits {
			continue
		}
		position := slices.Index(ranks, s.rank)
		top := MaxScore * (len(ranks) - position) / len(ranks)
		bottom := MaxScore*(len(ranks)-position-1)/len(ranks) + 1
		if i == best {
			s.points = int64(top)
			continue
		}
		lost := min(MaxScore, pointsOfGPU*(most[s.rank]-s.score))
		s.points = int64(max(bottom, top-1-int(lost)))
	}
}
