// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// ErrLimit means that the search has reached its limit.
var ErrLimit = errors.New("the search has reached its limit")

// Question asks the allocator about a workload and changes of it.
type Question struct {
	*Cluster
	Context  context.Context // all questions end with it
	Workload *Workload
	Groups   []*Group  // all nodes
	Asked    int       // how many questions there were
	Until    time.Time // all questions end then. Zero: each has the time that the scheduler gives it
	// MaxAsked and Deadline end a search: after so many questions, and then. Each of its questions has Limits.Change.
	// 0: it is no search.
	MaxAsked int
	Deadline time.Time
	Slow     int // questions of the search that took too long
	// Starts says that a workload does not fit where it would get devices and not start, because the node refuses them.
	Starts   bool
	Refused  *sharing.Refusal // the first such refusal
	Refusals int              // how many there were

	texts map[string]string // of errors, which many devices have
}

// About returns a question about the workload, with the groups of all nodes.
func About(ctx context.Context, c *Cluster, w *Workload) *Question {
	return &Question{Cluster: c, Context: ctx, Workload: w, Groups: c.nodeGroups(ctx, w)}
}

// once returns an equal text that is kept once.
func (q *Question) once(text string) string {
	if known, ok := q.texts[text]; ok {
		return known
	}
	if q.texts == nil {
		q.texts = map[string]string{}
	}
	q.texts[text] = text
	return text
}

// Placement is where a workload fits, and the devices that it gets there.
type Placement struct {
	Group   *Group
	Results []resourceapi.AllocationResult
}

// Ask asks the allocator whether the node of the group can have the claims of the workload. No results and no error
// mean that it cannot.
func (q *Question) Ask(w *Workload, s *Group) ([]resourceapi.AllocationResult, error) {
	if q.Context.Err() != nil || q.MaxAsked > 0 && (q.Asked >= q.MaxAsked || time.Now().After(q.Deadline)) {
		return nil, ErrLimit
	}
	q.Asked++
	held := s.Held
	if len(w.Ended) > 0 {
		held = allocator.HeldBy(s.Holders, w.Ended)
	}
	claims, timeout := w.claimsOn(s.Node), q.Limits.Ask
	if q.tooMany(claims, s, held) {
		return nil, nil
	}
	switch {
	case q.MaxAsked > 0:
		timeout = q.Limits.Change
	case !q.Until.IsZero():
		timeout = min(timeout, time.Until(q.Until))
	}
	ctx, cancel := context.WithTimeout(q.Context, timeout)
	defer cancel()
	results, err := q.ClassByName.Place(ctx, q.compiled, s.Node, s.Slices, held, claims...)
	switch {
	case err == nil:
		return results, nil
	case q.Context.Err() != nil:
		return nil, ErrLimit
	case errors.Is(err, context.DeadlineExceeded) && q.MaxAsked > 0:
		q.Slow++
		return nil, nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, ErrLimit
	}
	return results, err
}

// FitsOn reports whether the pod and its claims fit on the group.
func (q *Question) FitsOn(w *Workload, s *Group) (Placement, bool, error) {
	if q.Context.Err() != nil {
		return Placement{}, false, ErrLimit
	}
	if len(w.Excludes(q.Cluster, s.Node)) > 0 || len(q.OverQuota(w, s.Node)) > 0 {
		return Placement{}, false, nil
	}
	if len(w.Claims) == 0 {
		return Placement{Group: s}, true, nil
	}
	results, err := q.Ask(w, s)
	found, ok := Placement{s, results}, len(results) == len(w.Claims)
	if ok && err == nil && q.Starts {
		if refusal := q.Refusal(w.WithClaims(), w, found); refusal != nil {
			q.Refused, q.Refusals = cmp.Or(q.Refused, refusal), q.Refusals+1
			return Placement{}, false, nil
		}
	}
	return found, ok, err
}

// Place returns the first of the groups that the workload fits on, or nil. If these are all groups, that one comes
// first afterwards.
func (q *Question) Place(w *Workload, groups []*Group) (*Placement, error) {
	for i, s := range groups {
		found, ok, err := q.FitsOn(w, s)
		if err != nil {
			return nil, err
		}
		if ok {
			if i > 0 && len(groups) == len(q.Groups) { // likely the next workload fits there, too
				q.Groups = slices.Concat([]*Group{s}, groups[:i], groups[i+1:])
			}
			return &found, nil
		}
	}
	return nil, nil
}

// Placements returns all groups that the workload fits on. Like the scheduler, it returns an error if the allocator has
// one on any node.
func (q *Question) Placements(w *Workload) ([]Placement, error) {
	var all []Placement
	for _, s := range q.Groups {
		found, ok, err := q.FitsOn(w, s)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, found)
		}
	}
	return all, nil
}

// Open returns the groups that the pod does not exclude.
func (q *Question) Open() []*Group {
	var all []*Group
	for _, s := range q.Groups {
		if len(q.Workload.Excludes(q.Cluster, s.Node)) == 0 {
			all = append(all, s)
		}
	}
	return all
}

// Fits reports whether the workload fits on a node. An error counts as no.
func (q *Question) Fits(w *Workload) bool {
	found, err := q.Place(w, q.Groups)
	return err == nil && found != nil
}
