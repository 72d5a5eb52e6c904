// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/e2e/demos"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// errSkipped means that the cluster cannot run a demo.
var errSkipped = errors.New("skipped")

// summary is what is said after the last demo, where one looks first.
type summary struct {
	rows                      []string // of the table: a demo, seconds, the result, what it shows
	ran, skipped              int
	different, stuck, trouble []string // a line for each demo: its name, and why
}

// add counts a demo that took so long and ended with the error.
func (s *summary) add(demo demos.Demo, took time.Duration, err error) {
	result := "not run"
	switch {
	case err == nil:
		result = "right"
	case errors.Is(err, errSkipped):
		result = "skipped"
	case errors.Is(err, demos.ErrDifferent):
		result = "differs"
	case errors.Is(err, kube.ErrStuck):
		result = "stuck"
	}
	s.rows = append(s.rows, fmt.Sprintf("%s\t%.1f\t%s\t%s\n", demo.Name, took.Seconds(), result, demo.Title))
	if errors.Is(err, errSkipped) {
		s.skipped++
		return
	}
	s.ran++
	if err == nil {
		return
	}
	why, _, _ := strings.Cut(err.Error(), "\n")
	var failure demos.Failure
	if errors.As(err, &failure) {
		why = failure.Why
	}
	line := demo.Name + ": " + why
	switch {
	case errors.Is(err, demos.ErrDifferent):
		s.different = append(s.different, line)
	case errors.Is(err, kube.ErrStuck):
		s.stuck = append(s.stuck, line)
	default:
		s.trouble = append(s.trouble, line)
	}
}

// String returns a table of the demos, a line about all, then one for each that is not what its README says.
func (s *summary) String() string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "DEMO\tSECONDS\tRESULT\tWHAT IT SHOWS\n", strings.Join(s.rows, ""))
	_ = table.Flush() // a strings.Builder does not fail
	fmt.Fprintf(&b, "demos: %d as their READMEs say, %d not", s.ran-s.bad(), s.bad())
	if s.skipped > 0 {
		fmt.Fprintf(&b, ", %d skipped", s.skipped)
	}
	b.WriteString("\n")
	for _, group := range []struct {
		title string
		lines []string
	}{
		{"differs from its README", s.different},
		{"slow or stuck, with nothing new to see", s.stuck},
		{"did not run", s.trouble},
	} {
		for _, line := range group.lines {
			fmt.Fprintf(&b, "  %s: %s\n", group.title, line)
		}
	}
	return b.String()
}

// bad returns how many demos are not as their READMEs say.
func (s *summary) bad() int { return len(s.different) + len(s.stuck) + len(s.trouble) }
