// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
)

// Verb is what the kubelet asks the driver to do.
type Verb string

// The verbs whose side effects are steps.
const (
	Prepare   Verb = "prepare"
	Unprepare Verb = "unprepare"
)

// ParseVerb reads a verb; "" stands for either.
func ParseVerb(s string) (Verb, error) {
	if v := Verb(s); v == "" || v == Prepare || v == Unprepare {
		return v, nil
	}
	return "", fmt.Errorf("verb %q is not one of %s, %s", s, Prepare, Unprepare)
}

// Crash is the order that the next process of the driver that gets to a step ends there at once, as by SIGKILL.
type Crash struct {
	At    int  // the step, counted from 1 over the side effects of one call
	After bool // when the step has been done; otherwise before it
	Verb  Verb `json:",omitempty"` // "": whichever gets there first
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

// Steps are the names of the steps of the last call of each verb that went well to its end.
type Steps struct {
	Prepare   []string `json:",omitempty"`
	Unprepare []string `json:",omitempty"`
}

// of are the steps of the verb.
func (s *Steps) of(v Verb) *[]string {
	if v == Unprepare {
		return &s.Unprepare
	}
	return &s.Prepare
}

// OrderCrash orders a crash, in place of what was ordered before.
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

// CancelCrash takes the order back. It is no error if there is none.
func (n *Node) CancelCrash() error {
	return n.Change(func(s *State) error {
		s.Crash = nil
		return nil
	})
}

// TakeCrash says whether the order is the caller's to carry out. To one caller it says so, and then the order is gone from the
// disk: who starts again after the crash does not find it.
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

// RecordSteps makes NoteSteps note from now on. What it has noted stays.
func (n *Node) RecordSteps() error {
	return n.Change(func(s *State) error {
		if s.Steps == nil {
			s.Steps = &Steps{}
		}
		return nil
	})
}

// ForgetSteps makes NoteSteps note nothing any more and forgets what it has noted.
func (n *Node) ForgetSteps() error {
	return n.Change(func(s *State) error {
		s.Steps = nil
		return nil
	})
}

// NoteSteps notes the steps of a call that went well, if steps are to be recorded. The disk is only written when they are
// others than those of the call before.
func (n *Node) NoteSteps(verb Verb, names []string) error {
	v, err := n.View()
	if err != nil || v.Steps == nil || slices.Equal(*v.Steps.of(verb), names) {
		return err
	}
	return n.Change(func(s *State) error {
		if s.Steps == nil {
			return nil // not any more
		}
		next := *s.Steps
		*next.of(verb) = names
		s.Steps = &next
		return nil
	})
}
