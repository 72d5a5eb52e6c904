// SPDX-License-Identifier: Apache-2.0

package demos

import "strings"

// Compare returns an empty string if the lines match the block, and otherwise a diff: two spaces before a matching
// line, "-" before a missing line and "+" before an extra line.
func Compare(want, got []string) string {
	bindings := Bindings{}
	var diff strings.Builder
	same := true
	for len(want) > 0 || len(got) > 0 {
		if len(want) > 0 && len(got) > 0 && bindings.match(want[0], got[0]) {
			diff.WriteString("  " + got[0] + "\n")
			want, got = want[1:], got[1:]
			continue
		}
		same = false
		missing, extra := resync(bindings, want, got)
		for _, line := range want[:missing] {
			diff.WriteString("- " + bindings.fill(line) + "\n")
		}
		for _, line := range got[:extra] {
			diff.WriteString("+ " + line + "\n")
		}
		want, got = want[missing:], got[extra:]
	}
	if same {
		return ""
	}
	return diff.String()
}

// resync returns how many lines to skip on each side, as few as possible, until the next match.
func resync(bindings Bindings, want, got []string) (missing, extra int) {
	for n := 1; n <= len(want)+len(got); n++ {
		for extra := range n + 1 {
			missing := n - extra
			if missing >= len(want) || extra >= len(got) {
				continue
			}
			trial := Bindings{}
			for word, text := range bindings {
				trial[word] = text
			}
			if trial.match(want[missing], got[extra]) {
				return missing, extra
			}
		}
	}
	return len(want), len(got)
}
