// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/e2e/demos"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// errSkipped means that the cluster cannot run a demo.
var errSkipped = errors.New("skipped")

// result is how a demo ended, in the word of the table.
type result string

const (
	right     result = "right"
	skipped   result = "skipped"
	different result = "differs"
	stuck     result = "stuck"
	trouble   result = "not run"
)

// missing matches the lines that say that something is not there.
var missing = regexp.MustCompile(`^saw.*: no |^landed: .* nowhere`)

// meant returns a line of a demo that is as its README says. Without the addition, one reads what is meant to be
// missing as a failure.
func meant(line string) string {
	if missing.MatchString(line) {
		return line + ", as it should be"
	}
	return line
}

// titles say what is bad about a demo that ended so.
var titles = []struct {
	of    result
	title string
}{
	{different, "differs from its README"},
	{stuck, "slow or stuck, with nothing new to see"},
	{trouble, "did not run"},
}

func resultOf(err error) result {
	switch {
	case err == nil:
		return right
	case errors.Is(err, errSkipped):
		return skipped
	case errors.Is(err, demos.ErrDifferent):
		return different
	case errors.Is(err, kube.ErrStuck):
		return stuck
	}
	return trouble
}

// summary is what is said after the last demo, where one looks first.
type summary struct {
	rows  []string            // of the table: a demo, seconds, the result, what it shows
	ended map[result][]string // a line for each demo: its name, and why
}

// add counts a demo that took so long and ended with the error.
func (s *summary) add(demo demos.Demo, took time.Duration, err error) {
	ended, line := resultOf(err), demo.Name
	s.rows = append(s.rows, fmt.Sprintf("%s\t%.1f\t%s\t%s\n", demo.Name, took.Seconds(), ended, demo.Title))
	if err != nil {
		why, _, _ := strings.Cut(err.Error(), "\n")
		var failure demos.Failure
		if errors.As(err, &failure) {
			why = failure.Why
		}
		line += ": " + why
	}
	if s.ended == nil {
		s.ended = map[result][]string{}
	}
	s.ended[ended] = append(s.ended[ended], line)
}

// String returns a table of the demos, a line about all, then one for each that is not what its README says.
func (s *summary) String() string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "DEMO\tSECONDS\tRESULT\tWHAT IT SHOWS\n", strings.Join(s.rows, ""))
	_ = table.Flush() // a strings.Builder does not fail
	fmt.Fprintf(&b, "demos: %d as their READMEs say, %d not", len(s.ended[right]), s.bad())
	if n := len(s.ended[skipped]); n > 0 {
		fmt.Fprintf(&b, ", %d skipped", n)
	}
	b.WriteString("\n")
	for _, group := range titles {
		for _, line := range s.ended[group.of] {
			fmt.Fprintf(&b, "  %s: %s\n", group.title, line)
		}
	}
	return b.String()
}

// bad returns how many demos are not as their READMEs say.
func (s *summary) bad() (n int) {
	for _, group := range titles {
		n += len(s.ended[group.of])
	}
	return n
}
