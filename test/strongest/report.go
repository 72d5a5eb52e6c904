// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// report returns the share of placements on the strongest free GPU by the number of models in the cluster, and the
// reasons for the others.
func report(all []placement, rounds int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d random clusters for each setting, of 3 to 40 nodes; %d placements.\n\n| models that differ "+
		"in speed |", rounds, len(all))
	for _, s := range settings {
		fmt.Fprintf(&b, " %s: %s | %s | %s |", s.name, single, replica, unspread)
	}
	b.WriteString("\n|---:|" + strings.Repeat("---:|---:|---:|", len(settings)) + "\n")
	var tiers []int
	for _, p := range all {
		tiers = append(tiers, p.tiers)
	}
	slices.Sort(tiers)
	for _, n := range slices.Compact(tiers) {
		fmt.Fprintf(&b, "| %d |", n)
		row(&b, slices.DeleteFunc(slices.Clone(all), func(p placement) bool { return p.tiers != n }))
	}
	b.WriteString("| all |")
	row(&b, all)
	misses := map[string]map[string]int{}
	for _, p := range all {
		if !p.hit() {
			if misses[p.setting.name] == nil {
				misses[p.setting.name] = map[string]int{}
			}
			misses[p.setting.name][kind(p.reason)]++
		}
	}
	for _, s := range settings {
		if len(misses[s.name]) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\nWhat outvoted the stronger GPU, %s:\n\n", s.name)
		var reasons []string
		for reason := range misses[s.name] {
			reasons = append(reasons, reason)
		}
		slices.SortFunc(reasons, func(x, y string) int {
			if by := misses[s.name][y] - misses[s.name][x]; by != 0 {
				return by
			}
			return strings.Compare(x, y)
		})
		for _, reason := range reasons {
			fmt.Fprintf(&b, "- %d × %s\n", misses[s.name][reason], reason)
		}
	}
	return b.String()
}

// points matches the scores in a reason.
var points = regexp.MustCompile(` [+-]\d+`)

// kind returns the reason without its scores.
func kind(reason string) string {
	if reason == "" {
		return "not known: the scheduler's log was not read"
	}
	return points.ReplaceAllString(reason, "")
}

func row(b *strings.Builder, all []placement) {
	for _, s := range settings {
		for _, how := range []how{single, replica, unspread} {
			some := slices.DeleteFunc(slices.Clone(all), func(p placement) bool {
				return p.setting != s || p.how != how
			})
			if len(some) == 0 {
				b.WriteString(" |")
				continue
			}
			fmt.Fprintf(b, " %.0f %% (%d of %d) |", 100*float64(hits(some))/float64(len(some)), hits(some), len(some))
		}
	}
	b.WriteString("\n")
}
