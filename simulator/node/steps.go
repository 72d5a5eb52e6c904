// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
)

// Verb is a call of the kubelet to the driver.
type Verb string

// The verbs whose side effects are steps.
const (
	Prepare   Verb = "prepare"
	Unprepare Verb = "unprepare"
)

// ParseVerb parses a verb; "" means either.
func ParseVerb(s string) (Verb, error) {
	if v := Verb(s); v == "" || v == Prepare || v == Unprepare {
		return v, nil
	}
	return "", fmt.Errorf("verb %q is not one of %s, %s", s, Prepare, Unprepare)
}

// Crash is an order: the next driver process that reaches a step exits there at once, as by SIGKILL.
type Crash struct {
	At    int  // the step: side effects of one call, counted from 1
	After bool // after the step instead of before it
	Verb  Verb `json:",omitempty"` // "": either
}

// String is the order as the node prints it.
func (c Crash) String() string {
	when, verb := "before", string(c.Verb)
	if c.After {
		when = "after"
	}
	if verb == "" {
		verb = "prepare or unprepare"
	}
	return fmt.Sprintf("crash %s step %d of %s", when, c.At, verb)
}

// Steps are the names of the steps of the last successful call of each verb.
type Steps struct {
	Prepare   []string `json:",omitempty"`
	Unprepare []string `json:",omitempty"`
}

// of returns the steps of the verb.
func (s *Steps) of(v Verb) *[]string {
	if v == Unprepare {
		return &s.Unprepare
	}
	return &s.Prepare
}

// OrderCrash orders a crash and replaces an earlier order.
func (n *Node) OrderCrash(c Crash) error {
	if c.At < 1 {
		return fmt.Errorf("step %d: steps are counted from 1", c.At)
	}
	if _, err := ParseVerb(string(c.Verb)); err != nil {
		return err
	}
	return n.Change(func(s *State) error {
		s.Crash = &c
		return nil
	})
}

// CancelCrash cancels the order. It is no error if there is none.
func (n *Node) CancelCrash() error {
	return n.Change(func(s *State) error {
		s.Crash = nil
		return nil
	})
}

// TakeCrash removes the order from the disk and returns true if it is still the given one. Only one caller gets true,
// so that the process restarted after the crash does not crash again.
func (n *Node) TakeCrash(c Crash) (mine bool, err error) {
	err = n.Change(func(s *State) error {
		mine = s.Crash != nil && *s.Crash == c
		if mine {
			s.Crash = nil
		}
		return nil
	})
	return mine && err == nil, err
}

// RecordSteps enables NoteSteps. Steps noted before stay.
func (n *Node) RecordSteps() error {
	return n.Change(func(s *State) error {
		if s.Steps == nil {
			s.Steps = &Steps{}
		}
		return nil
	})
}

// ForgetSteps disables NoteSteps and deletes what it has noted.
func (n *Node) ForgetSteps() error {
	return n.Change(func(s *State) error {
		s.Steps = nil
		return nil
	})
}

// NoteSteps stores the steps of a successful call if recording is on. It writes to disk only if they differ from those
// of the call before.
func (n *Node) NoteSteps(verb Verb, names []string) error {
	v, err := n.View()
	if err != nil || v.Steps == nil || slices.Equal(*v.Steps.of(verb), names) {
		return err
	}
	return n.Change(func(s *State) error {
		if s.Steps == nil {
			return nil // disabled meanwhile
		}
		next := *s.Steps
		*next.of(verb) = names
		s.Steps = &next
		return nil
	})
}
