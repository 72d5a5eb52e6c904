// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Lines returns what is and was wrong with each GPU, for people, with tabs between columns: first what is.
func Lines(saved Saved) []string {
	lines := []string{"GPU\tWHAT\tEFFECT\tSINCE\tSEEN\tENDED OR ENDS\tWHAT TO DO"}
	for _, g := range saved.GPUs {
		found := slices.DeleteFunc(slices.Clone(saved.Conditions), func(c Condition) bool { return c.GPU != g.UUID })
		slices.SortStableFunc(found, func(a, b Condition) int {
			return cmp.Or(cmp.Compare(rank(a), rank(b)), b.Since.Compare(a.Since))
		})
		for _, c := range found {
			lines = append(lines, line(g, c))
		}
		switch {
		case slices.ContainsFunc(found, Condition.Active):
		case g.Unwatched != "":
			lines = append(lines, fmt.Sprintf("%s\tnot watched: %s", g.Name, g.Unwatched))
		default:
			lines = append(lines, g.Name+"\thealthy")
		}
	}
	return lines
}

// rank sorts ended conditions last.
func rank(c Condition) int {
	if c.Active() {
		return 0
	}
	return 1
}

// times says how often something occurred.
func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func line(g SavedGPU, c Condition) string {
	name, what := g.Name, c.Cause.Title()
	if c.Partition != nil {
		name = gpu.PartitionName(g.Name, *c.Partition)
	}
	if c.Detail != "" {
		what += " (" + c.Detail + ")"
	}
	rule := g.Rules[c.Cause]
	_, advice := Describe(c.Cause)
	advice = OfGPU(advice, string(c.GPU))
	end := string(rule.Recovery)
	switch {
	case !c.Active():
		end, advice = fmt.Sprintf("%s (%s)", c.Ended.UTC().Format(time.RFC3339), c.End), ""
	case !c.Until(NewPolicy(g.Rules)).IsZero():
		end = c.Until(NewPolicy(g.Rules)).UTC().Format(time.RFC3339)
	}
	return strings.TrimRight(strings.Join([]string{name, what, string(rule.Effect), c.Since.UTC().Format(time.RFC3339),
		times(c.Count), end, advice}, "\t"), "\t")
}
