// SPDX-License-Identifier: Apache-2.0

package why

import (
	"errors"
	"fmt"
	"slices"
)

const (
	// maxAlternatives is how many further sets of changes a report has.
	maxAlternatives = 4
	// maxRefusedWaits is how many claims to wait for are tried in vain because a node refuses the workload then.
	maxRefusedWaits = 8
	// maxGroups is on how many kinds of nodes the search tries to wait for several claims.
	maxGroups = 32
)

// step is a change at a level.
type step struct {
	*change
	level int
}

// advice is a set of changes with which the workload fits.
type advice []step

func (a advice) changes() []Change {
	var all []Change
	for _, s := range a {
		all = append(all, Change{Kind: s.kind, In: s.in, Request: s.request, Text: s.text(s.level)})
	}
	return all
}

// equal reports whether both have the same changes, in any order.
func (a advice) equal(b advice) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(s step) bool { return !slices.Contains(b, s) })
}

// mixed is what it weighs to change something and to wait as well.
const mixed = 10

// weight orders sets of changes: fewer first, then by rank.
func (a advice) weight() int {
	sum, waits := 0, 0
	for _, s := range a {
		sum += 1000 + s.rank()
		if s.kind == Wait {
			waits++
		}
	}
	if waits > 0 && waits < len(a) {
		sum += mixed
	}
	return sum
}

// with returns the workload with the changes.
func (w *workload) with(steps []step) *workload {
	c := w.clone()
	for _, s := range steps {
		s.apply(c, s.level)
	}
	return c
}

// search finds the smallest advice.
type search struct {
	*proposals
	// everywhere asks about all nodes each time: an error of an expression on one keeps the pod from all others.
	everywhere bool
	found      []advice
	notTried   []string
	// refusedOnly is the first change with which the workload gets devices that its node refuses; nil: none.
	refusedOnly []step
}

// loosest returns the changes at their last level.
func loosest(changes ...*change) []step {
	var all []step
	for _, c := range changes {
		all = append(all, step{c, c.levels - 1})
	}
	return all
}

// works reports whether the workload fits with the changes. An error of the allocator, other than that of the limit,
// means no.
func (s *search) works(steps []step) (bool, error) {
	groups := s.groups
	if len(steps) == 1 && steps[0].only != nil {
		groups = []*nodeGroup{steps[0].only}
	}
	var fits bool
	var err error
	if s.everywhere {
		var placements []placement
		placements, err = s.placements(s.w.with(steps))
		fits = len(placements) > 0
	} else {
		var found *placement
		found, err = s.place(s.w.with(steps), groups)
		fits = found != nil
	}
	if errors.Is(err, errLimit) {
		return false, err
	}
	return err == nil && fits, nil
}

// tighten makes each change as mild as it can be.
func (s *search) tighten(steps []step) ([]step, error) {
	steps = slices.Clone(steps)
	for i := range steps {
		mild, loose := 0, steps[i].level // the answer is in [mild, loose], and loose works
		for _, level := range steps[i].try {
			if level >= loose {
				break
			}
			steps[i].level = level
			ok, err := s.works(steps)
			if err != nil {
				return nil, err
			}
			if ok {
				loose = level
				break
			}
			mild = level + 1
		}
		for mild < loose {
			steps[i].level = (mild + loose) / 2
			ok, err := s.works(steps)
			if err != nil {
				return nil, err
			}
			if ok {
				loose = steps[i].level
			} else {
				mild = steps[i].level + 1
			}
		}
		steps[i].level = loose
	}
	return steps, nil
}

// start returns levels at which the steps work, or nil.
func (s *search) start(steps []step) ([]step, error) {
	if ok, err := s.works(steps); ok || err != nil {
		return steps, err
	}
	for i, st := range steps {
		for _, level := range st.try {
			with := slices.Clone(steps)
			with[i].level = level
			if ok, err := s.works(with); ok || err != nil {
				return with, err
			}
		}
	}
	return nil, nil
}

// prune leaves out what is not needed: with a request for all devices, a change that a loose level needs may not be
// needed at a mild one.
func (s *search) prune(steps []step) ([]step, error) {
	for i := 0; len(steps) > 1 && i < len(steps); {
		rest := slices.Delete(slices.Clone(steps), i, i+1)
		ok, err := s.works(rest)
		if err != nil {
			return nil, err
		}
		if !ok {
			i++
			continue
		}
		if steps, err = s.tighten(rest); err != nil {
			return nil, err
		}
		i = 0
	}
	return steps, nil
}

// accept adds the advice, as mild as it can be, if it works on all nodes.
func (s *search) accept(steps []step) (bool, error) {
	steps, err := s.start(steps)
	if steps == nil || err != nil {
		return false, err
	}
	if steps, err = s.tighten(steps); err != nil {
		return false, err
	}
	if steps, err = s.prune(steps); err != nil {
		return false, err
	}
	// The scheduler aborts if the allocator has an error on any node.
	placements, err := s.placements(s.w.with(steps))
	if errors.Is(err, errLimit) {
		return false, err
	}
	if err != nil || len(placements) == 0 {
		return false, nil //nolint:nilerr // such steps do not help
	}
	if !slices.ContainsFunc(s.found, advice(steps).equal) { // two large sets may be reduced to the same
		s.found = append(s.found, steps)
	}
	return true, nil
}

// run searches: single changes, then larger sets.
func (s *search) run() {
	ofClaims, waits := s.changes()
	if s.single(slices.Concat(ofClaims, waits)) && len(s.found) == 0 {
		s.larger(ofClaims, waits)
	}
	slices.SortStableFunc(s.found, func(a, b advice) int { return a.weight() - b.weight() })
}

// single tries each change alone. It returns false at the limit.
func (s *search) single(all []*change) bool {
	waits, refusedWaits := 0, 0
	done := map[target]bool{}
	for i, c := range all {
		if done[c.target] || c.kind == Wait && (waits == maxAlternatives || refusedWaits == maxRefusedWaits) {
			continue
		}
		before := s.refusals
		ok, err := s.accept(loosest(c))
		if err != nil {
			s.notTried = append(s.notTried, fmt.Sprintf("%d of %d single changes, and sets of changes", len(all)-i,
				len(all)))
			return false
		}
		if !ok && s.refusals > before {
			if s.refusedOnly == nil {
				s.refusedOnly = loosest(c)
			}
			if c.kind == Wait {
				refusedWaits++
			}
		}
		if ok {
			done[c.target] = true
			if c.kind == Wait {
				waits++
			}
		}
	}
	return true
}

// larger starts with all changes, and leaves out those without which the workload fits.
func (s *search) larger(ofClaims, waits []*change) {
	var sets [][]*change
	for _, without := range []ChangeKind{DropCapacity, LowerCapacity, DropClause} {
		sets = append(sets, everything(ofClaims, without))
	}
	groups := 0
	for _, at := range s.groups {
		var here []*change
		for _, c := range waits {
			if c.only == nil || c.only == at {
				here = append(here, c)
			}
		}
		if len(here) == 0 {
			continue
		}
		if groups++; groups > maxGroups {
			continue
		}
		for _, with := range append([][]*change{nil}, sets[:3]...) {
			sets = append(sets, slices.Concat(here, with))
		}
	}
	if groups > maxGroups {
		s.notTried = append(s.notTried, fmt.Sprintf("to wait for several claims on %d of %d kinds of nodes",
			groups-maxGroups, groups))
	}
	for _, set := range sets {
		if err := s.reduce(set, ofClaims); err != nil {
			s.notTried = append(s.notTried, "some sets of changes")
			return
		}
	}
}

// everything returns the loosest change of each thing, but of that kind. Clauses are guarded where none is removed.
func everything(all []*change, without ChangeKind) []*change {
	var set []*change
	for _, c := range all {
		if c.kind == without || c.kind == Guard && without != DropClause {
			continue
		}
		if at := slices.IndexFunc(set, func(other *change) bool { return other.target == c.target }); at < 0 {
			set = append(set, c)
		} else if c.kind == DropClause {
			set[at] = c
		}
	}
	return set
}

// reduce leaves out changes as long as the workload fits, those of high rank first.
func (s *search) reduce(set, ofClaims []*change) error {
	ok, err := s.works(loosest(set...))
	if !ok || err != nil {
		return err
	}
	set = slices.Clone(set)
	slices.SortStableFunc(set, func(a, b *change) int { return b.rank() - a.rank() })
	for i := 0; i < len(set); {
		rest := slices.Delete(slices.Clone(set), i, i+1)
		ok, err := s.works(loosest(rest...))
		if err != nil {
			return err
		}
		if ok {
			set = rest
		} else {
			i++
		}
	}
	for i, c := range set { // a milder change of the same thing
		for _, milder := range ofClaims {
			if milder.target != c.target || milder.rank() >= c.rank() {
				continue
			}
			with := slices.Clone(set)
			with[i] = milder
			ok, err := s.works(loosest(with...))
			if err != nil {
				return err
			}
			if ok {
				set = with
				break
			}
		}
	}
	slices.SortStableFunc(set, func(a, b *change) int { return a.rank() - b.rank() })
	_, err = s.accept(loosest(set...))
	return err
}
