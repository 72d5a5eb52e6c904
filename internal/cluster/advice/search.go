// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
)

const (
	// MaxAlternatives is how many further sets of changes a report has.
	MaxAlternatives = 4
	// maxRefusedWaits is how many claims to wait for are tried in vain because a node refuses the workload then.
	maxRefusedWaits = 8
	// maxGroups is on how many kinds of nodes the search tries to wait for several claims.
	maxGroups = 32
	// searchTimeout ends the search for changes.
	searchTimeout = 20 * time.Second
	// mixed is what it weighs to change something and to wait as well.
	mixed = 10
)

// SearchAsked is how many questions to the allocator a search for changes asks. Tests change it.
var SearchAsked = 20_000

// Step is a change at a level.
type Step struct {
	*Proposal
	Level int
}

// Advice is a set of changes with which the workload fits.
type Advice []Step

// Changes returns the changes for people.
func (a Advice) Changes() []Change {
	var all []Change
	for _, s := range a {
		all = append(all, Change{Kind: s.Kind, In: s.in, Request: s.request, Text: s.Text(s.Level)})
	}
	return all
}

// equal reports whether both have the same changes, in any order.
func (a Advice) equal(b Advice) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(s Step) bool { return !slices.Contains(b, s) })
}

// weight orders sets of changes: fewer first, then by rank.
func (a Advice) weight() int {
	sum, waits := 0, 0
	for _, s := range a {
		sum += 1000 + s.rank()
		if s.Kind == Wait {
			waits++
		}
	}
	if waits > 0 && waits < len(a) {
		sum += mixed
	}
	return sum
}

// With returns the workload with the changes.
func With(w *schedule.Workload, steps []Step) *schedule.Workload {
	c := w.Clone()
	for _, s := range steps {
		s.apply(c, s.Level)
	}
	return c
}

// Search finds the smallest advice, and has what it has found.
type Search struct {
	*proposals
	Found    []Advice // the smallest first
	NotTried []string // what the search did not get to; empty: nothing
	Note     string   // with which changes the workload would get devices and not start; empty: with none

	// everywhere asks about all nodes each time: an error of an expression on one keeps the pod from all others.
	everywhere bool
	// refusedOnly is the first change with which the workload gets devices that its node refuses; nil: none.
	refusedOnly []Step
}

// Find searches for the smallest changes of the workload of the question. The candidates are those of CompareAll.
func Find(q *schedule.Question, candidates map[schedule.RequestID][]schedule.Candidate) *Search {
	s := &Search{proposals: &proposals{q, candidates}, everywhere: anyErrors(candidates)}
	q.MaxAsked, q.Deadline = q.Asked+SearchAsked, time.Now().Add(searchTimeout)
	q.Starts = true
	s.run()
	with := "other changes"
	if len(s.Found) == 0 && s.refusedOnly != nil {
		q.Starts, with = false, "that change"
		q.MaxAsked, q.Deadline = q.Asked+SearchAsked, time.Now().Add(searchTimeout/4)
		if _, err := s.accept(s.refusedOnly); err != nil {
			s.NotTried = append(s.NotTried, "whether a milder change is enough")
		}
	}
	if len(s.Found) > 0 && q.Refused != nil {
		s.Note = fmt.Sprintf("with %s it would get devices and not start, because its node refuses it: %s", with,
			q.Refused.Text())
	}
	if s.Slow > 0 {
		s.NotTried = append(s.NotTried, fmt.Sprintf("what the allocator does not answer within %s (%d %s)",
			q.Limits.Change, s.Slow, schedule.Plural(s.Slow, "question", "questions")))
	}
	return s
}

// anyErrors reports whether an expression, or a clause of one by itself, has an error on any device.
func anyErrors(candidates map[schedule.RequestID][]schedule.Candidate) bool {
	for _, of := range candidates {
		if slices.ContainsFunc(of, func(f schedule.Candidate) bool { return f.Failed }) {
			return true
		}
	}
	return false
}

// Loosest returns the changes at their last level.
func Loosest(changes ...*Proposal) []Step {
	var all []Step
	for _, c := range changes {
		all = append(all, Step{c, c.Levels - 1})
	}
	return all
}

// works reports whether the workload fits with the changes. An error of the allocator, other than that of the limit,
// means no.
func (s *Search) works(steps []Step) (bool, error) {
	groups := s.Groups
	if len(steps) == 1 && steps[0].only != nil {
		groups = []*schedule.Group{steps[0].only}
	}
	var fits bool
	var err error
	if s.everywhere {
		var placements []schedule.Placement
		placements, err = s.Placements(With(s.Workload, steps))
		fits = len(placements) > 0
	} else {
		var found *schedule.Placement
		found, err = s.Place(With(s.Workload, steps), groups)
		fits = found != nil
	}
	if errors.Is(err, schedule.ErrLimit) {
		return false, err
	}
	return err == nil && fits, nil
}

// tighten makes each change as mild as it can be.
func (s *Search) tighten(steps []Step) ([]Step, error) {
	steps = slices.Clone(steps)
	for i := range steps {
		mild, loose := 0, steps[i].Level // the answer is in [mild, loose], and loose works
		for _, level := range steps[i].try {
			if level >= loose {
				break
			}
			steps[i].Level = level
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
			steps[i].Level = (mild + loose) / 2
			ok, err := s.works(steps)
			if err != nil {
				return nil, err
			}
			if ok {
				loose = steps[i].Level
			} else {
				mild = steps[i].Level + 1
			}
		}
		steps[i].Level = loose
	}
	return steps, nil
}

// start returns levels at which the steps work, or nil.
func (s *Search) start(steps []Step) ([]Step, error) {
	if ok, err := s.works(steps); ok || err != nil {
		return steps, err
	}
	for i, st := range steps {
		for _, level := range st.try {
			with := slices.Clone(steps)
			with[i].Level = level
			if ok, err := s.works(with); ok || err != nil {
				return with, err
			}
		}
	}
	return nil, nil
}

// prune leaves out what is not needed: with a request for all devices, a change that a loose level needs may not be
// needed at a mild one.
func (s *Search) prune(steps []Step) ([]Step, error) {
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
func (s *Search) accept(steps []Step) (bool, error) {
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
	placements, err := s.Placements(With(s.Workload, steps))
	if errors.Is(err, schedule.ErrLimit) {
		return false, err
	}
	if err != nil || len(placements) == 0 {
		return false, nil //nolint:nilerr // such steps do not help
	}
	if !slices.ContainsFunc(s.Found, Advice(steps).equal) { // two large sets may be reduced to the same
		s.Found = append(s.Found, steps)
	}
	return true, nil
}

// run searches: single changes, then larger sets.
func (s *Search) run() {
	ofClaims, waits := s.Changes()
	if s.single(slices.Concat(ofClaims, waits)) && len(s.Found) == 0 {
		s.larger(ofClaims, waits)
	}
	slices.SortStableFunc(s.Found, func(a, b Advice) int { return a.weight() - b.weight() })
}

// single tries each change alone. It returns false at the limit.
func (s *Search) single(all []*Proposal) bool {
	waits, refusedWaits := 0, 0
	done := map[target]bool{}
	for i, c := range all {
		if done[c.Target] || c.Kind == Wait && (waits == MaxAlternatives || refusedWaits == maxRefusedWaits) {
			continue
		}
		before := s.Refusals
		ok, err := s.accept(Loosest(c))
		if err != nil {
			s.NotTried = append(s.NotTried, fmt.Sprintf("%d of %d single changes, and sets of changes", len(all)-i,
				len(all)))
			return false
		}
		if !ok && s.Refusals > before {
			if s.refusedOnly == nil {
				s.refusedOnly = Loosest(c)
			}
			if c.Kind == Wait {
				refusedWaits++
			}
		}
		if ok {
			done[c.Target] = true
			if c.Kind == Wait {
				waits++
			}
		}
	}
	return true
}

// larger starts with all changes, and leaves out those without which the workload fits.
func (s *Search) larger(ofClaims, waits []*Proposal) {
	var sets [][]*Proposal
	for _, without := range []ChangeKind{DropCapacity, LowerCapacity, DropClause} {
		sets = append(sets, everything(ofClaims, without))
	}
	groups := 0
	for _, at := range s.Groups {
		var here []*Proposal
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
		for _, with := range append([][]*Proposal{nil}, sets[:3]...) {
			sets = append(sets, slices.Concat(here, with))
		}
	}
	if groups > maxGroups {
		s.NotTried = append(s.NotTried, fmt.Sprintf("to wait for several claims on %d of %d kinds of nodes",
			groups-maxGroups, groups))
	}
	for _, set := range sets {
		if err := s.reduce(set, ofClaims); err != nil {
			s.NotTried = append(s.NotTried, "some sets of changes")
			return
		}
	}
}

// everything returns the loosest change of each thing, but of that kind. Clauses are guarded where none is removed.
func everything(all []*Proposal, without ChangeKind) []*Proposal {
	var set []*Proposal
	for _, c := range all {
		if c.Kind == without || c.Kind == Guard && without != DropClause {
			continue
		}
		if at := slices.IndexFunc(set, func(other *Proposal) bool { return other.Target == c.Target }); at < 0 {
			set = append(set, c)
		} else if c.Kind == DropClause {
			set[at] = c
		}
	}
	return set
}

// reduce leaves out changes as long as the workload fits, those of high rank first.
func (s *Search) reduce(set, ofClaims []*Proposal) error {
	ok, err := s.works(Loosest(set...))
	if !ok || err != nil {
		return err
	}
	set = slices.Clone(set)
	slices.SortStableFunc(set, func(a, b *Proposal) int { return b.rank() - a.rank() })
	for i := 0; i < len(set); {
		rest := slices.Delete(slices.Clone(set), i, i+1)
		ok, err := s.works(Loosest(rest...))
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
			if milder.Target != c.Target || milder.rank() >= c.rank() {
				continue
			}
			with := slices.Clone(set)
			with[i] = milder
			ok, err := s.works(Loosest(with...))
			if err != nil {
				return err
			}
			if ok {
				set = with
				break
			}
		}
	}
	slices.SortStableFunc(set, func(a, b *Proposal) int { return a.rank() - b.rank() })
	_, err = s.accept(Loosest(set...))
	return err
}
