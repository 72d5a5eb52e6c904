// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
	"github.com/gpudra/gpu-dra-driver/pkg/nearest"
)

// maxClasses is how many classes are tried in place of one that has no devices.
const maxClasses = 16

// corrections replaces names and values that no device has by those that were likely meant.
func (ps *proposals) corrections(claim, number int, candidates []schedule.Candidate) []*Proposal {
	p := cluster.Subrequests(&ps.Workload.Claims[claim].Spec)[number]
	var all []*Proposal
	for _, m := range wrongClauses(ps.Question, claim, number, candidates) {
		text := ps.Workload.Clauses[m.ref][m.clause].Text
		if ps.ClassByName[m.Class] != nil {
			all = append(all, &Proposal{Kind: UseClass, in: ps.Workload.Origins[claim].Object, request: p.Name,
				Target: clauseOf(m.ref, m.clause), Levels: 1,
				Text: one(fmt.Sprintf("use the class %s, without %s", m.Class, text)),
				apply: func(w *schedule.Workload, _ int) {
					*cluster.Subrequests(&w.Claims[claim].Spec)[number].Class = m.Class
					w.SetClause(m.ref, m.clause, "")
				}})
		}
		if len(m.Fixes) == 0 {
			continue
		}
		c := &Proposal{Kind: Correct, in: ps.Workload.Origins[claim].Object, request: p.Name,
			Target: clauseOf(m.ref, m.clause), Levels: len(m.Fixes), try: UpTo(len(m.Fixes)),
			Text:  func(level int) string { return fmt.Sprintf("write %s instead of %s", m.Fixes[level], text) },
			apply: func(w *schedule.Workload, level int) { w.SetClause(m.ref, m.clause, m.Fixes[level]) }}
		if m.Wrong != (selectors.Path{}) { // each clause of the selector names it
			c.Text = one(fmt.Sprintf("write %s instead of %s", m.Right, m.Wrong))
			c.apply = func(w *schedule.Workload, _ int) {
				for n, other := range ps.Workload.Clauses[m.ref] {
					if slices.Contains(other.Named, m.Wrong) {
						w.SetClause(m.ref, n, other.Renamed(m.Wrong, m.Right))
					}
				}
			}
		}
		all = append(all, c)
	}
	return all
}

// otherClasses returns the classes to try in place of one that has no devices, the nearest first: in place of a
// partition, only partitions.
func (ps *proposals) otherClasses(name string) []string {
	all := slices.Sorted(maps.Keys(ps.ClassByName))
	if nearest.Profile(name) {
		near := nearest.Profiles(name, all)
		return near[:min(len(near), maxClasses)]
	}
	if ps.ClassByName[name] != nil {
		return nil // the others are of something else
	}
	near := nearest.Names(name, all, maxClasses)
	label, _, _ := strings.Cut(name, ".")
	for _, other := range all { // gpu.example.com may be meant to be gpu.nvidia.com, and nic.example.com not
		if first, _, _ := strings.Cut(other, "."); first == label && len(near) < maxClasses &&
			!slices.Contains(near, other) {
			near = append(near, other)
		}
	}
	return near
}

// Mistakes says what is wrong with clauses of the subrequest that no device of its class meets, and what was likely
// meant.
func Mistakes(q *schedule.Question, claim, number int, candidates []schedule.Candidate) (texts []string) {
	for _, m := range wrongClauses(q, claim, number, candidates) {
		texts = append(texts, m.Text)
	}
	return texts
}

// wrongClause is a mistake in a clause of a subrequest.
type wrongClause struct {
	ref    schedule.SelectorRef
	clause int
	*selectors.Mistake
}

// wrongClauses returns the clauses of the subrequest that no device of its class meets and that have a mistake: one
// that is sure, or a value outside of a list. A list may well have an alternative for devices that are not there.
func wrongClauses(q *schedule.Question, claim, number int, candidates []schedule.Candidate) []wrongClause {
	var all []wrongClause
	var words *selectors.Vocabulary
	p := cluster.Subrequests(&q.Workload.Claims[claim].Spec)[number]
	for k := range *p.Selectors {
		ref := schedule.SelectorRef{RequestID: schedule.RequestID{Claim: claim, Number: number}, Selector: k}
		for n, c := range q.Workload.Clauses[ref] {
			if n == selectors.ExplainedClauses || q.Context.Err() != nil {
				break
			}
			if len(c.Named) == 0 || anyMeets(q, c.Text, candidates) {
				continue
			}
			if words == nil {
				words = vocabularyOf(candidates)
			}
			if m := words.Mistake(c); m != nil && (m.Sure || m.Value && p.Alternative < 0) {
				all = append(all, wrongClause{ref, n, m})
			}
		}
	}
	return all
}

// anyMeets reports whether a device of the class meets the expression.
func anyMeets(q *schedule.Question, expression string, candidates []schedule.Candidate) bool {
	return slices.ContainsFunc(candidates, func(f schedule.Candidate) bool {
		if !f.InClass() {
			return false
		}
		ok, err := schedule.Meets(q.Context, f.Slice.Spec.Driver, f.Device, selectors.Compiled.GetOrCompile(expression))
		return ok && err == nil || q.Context.Err() != nil
	})
}

// vocabularyOf returns what selectors of the class's devices can name.
func vocabularyOf(candidates []schedule.Candidate) *selectors.Vocabulary {
	words := selectors.NewVocabulary()
	type parts struct{ attributes, capacity uintptr } // equal devices may share them
	seen := map[parts]bool{}
	for _, f := range candidates {
		if !f.InClass() {
			continue
		}
		of := parts{reflect.ValueOf(f.Device.Attributes).Pointer(), reflect.ValueOf(f.Device.Capacity).Pointer()}
		if !seen[of] {
			seen[of] = true
			words.Add(f.Slice.Spec.Driver, f.Device)
		}
	}
	return words
}
