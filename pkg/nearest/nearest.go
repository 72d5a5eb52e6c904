// SPDX-License-Identifier: Apache-2.0

// Package nearest finds the name that a misspelt one was likely meant to be.
package nearest

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxLength is the length up to which names are compared, in bytes. Users write names, so the time is bounded.
	maxLength = 64
	// minPart is the length from which on a name is taken for a part of a longer one, if it is no word of it.
	minPart = 3
)

// Name returns the candidate that the name was likely meant to be, or "" if none is near.
func Name(name string, candidates []string) string {
	if all := Names(name, candidates, 1); len(all) > 0 {
		return all[0]
	}
	return ""
}

// Names returns at most that many candidates that the name was likely meant to be, the nearest first.
func Names(name string, candidates []string, most int) []string {
	type near struct {
		name     string
		distance int
	}
	var all []near
	for _, c := range candidates {
		if d, ok := distance(name, c); ok && c != name {
			all = append(all, near{c, d})
		}
	}
	slices.SortStableFunc(all, func(a, b near) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	all = slices.Compact(all)
	var names []string
	for _, n := range all[:min(most, len(all))] {
		names = append(names, n.name)
	}
	return names
}

// Hint returns a question that ends a message about an unknown name, or "" if no candidate is near.
func Hint(name string, candidates []string) string {
	if near := Name(name, candidates); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}

// distance returns how far the names are apart, and whether one may be meant by the other: they differ in case or
// punctuation, in few letters, or one is a part of the other.
func distance(name, candidate string) (int, bool) {
	a, b := plain(name), plain(candidate)
	if a == "" || b == "" || len(a) > maxLength || len(b) > maxLength {
		return 0, false
	}
	if most := max(1, min(len(a), len(b))/4); max(len(a), len(b))-min(len(a), len(b)) <= most {
		if d := edits(a, b); d <= most {
			return d, true
		}
	}
	word := func(w string) bool { return plain(w) == a } // models such as T4 are short
	if len(a) >= minPart && strings.Contains(b, a) || slices.ContainsFunc(strings.Fields(candidate), word) ||
		len(b) >= minPart && strings.Contains(a, b) {
		return maxLength + max(len(a), len(b)) - min(len(a), len(b)), true
	}
	return 0, false
}

// plain returns the name in lower case, with only its letters and digits.
func plain(name string) string {
	if len(name) > 2*maxLength {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(name))
}

// edits returns how many letters are inserted, removed, replaced or swapped with the next to make b of a.
func edits(a, b string) int {
	before, last, now := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		now[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			now[j+1] = min(last[j]+cost, last[j+1]+1, now[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				now[j+1] = min(now[j+1], before[j-1]+1)
			}
		}
		before, last, now = last, now, before
	}
	return last[len(b)]
}

// profile matches the name of a MIG profile in a longer name: slices of the GPU, and its memory in GB.
var profile = regexp.MustCompile(`(\d{1,4})g\.(\d{1,4})gb`)

// Profile reports whether the name has a MIG profile in it, such as that of a class of partitions.
func Profile(name string) bool { return profile.MatchString(name) }

// Profiles returns the candidates with a MIG profile in them: those of the nearest memory first, and of those with
// equal memory those of the nearest number of slices. It returns nil if the name has no profile.
func Profiles(name string, candidates []string) []string {
	slicesOf, memory, ok := sizes(name)
	if !ok {
		return nil
	}
	type near struct {
		name           string
		memory, slices int
	}
	var all []near
	for _, c := range candidates {
		if s, m, ok := sizes(c); ok && c != name {
			all = append(all, near{c, max(m, memory) - min(m, memory), max(s, slicesOf) - min(s, slicesOf)})
		}
	}
	slices.SortFunc(all, func(a, b near) int {
		return cmp.Or(cmp.Compare(a.memory, b.memory), cmp.Compare(a.slices, b.slices), cmp.Compare(len(a.name),
			len(b.name)), cmp.Compare(a.name, b.name))
	})
	var names []string
	for _, n := range all {
		names = append(names, n.name)
	}
	return names
}

// sizes returns the slices and the memory of the profile in a name.
func sizes(name string) (slicesOf, memory int, ok bool) {
	m := profile.FindStringSubmatch(name)
	if m == nil {
		return 0, 0, false
	}
	slicesOf, errSlices := strconv.Atoi(m[1])
	memory, errMemory := strconv.Atoi(m[2])
	return slicesOf, memory, errSlices == nil && errMemory == nil
}
