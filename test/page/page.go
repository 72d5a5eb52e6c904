// SPDX-License-Identifier: Apache-2.0

// Package page inserts measured results into the documentation.
package page

import (
	"fmt"
	"os"
	"strings"
	"unicode/utf8"
)

const endMark = "<!-- end -->"

// Insert replaces the text in the file between the mark "<!-- begin: written by COMMAND -->" and the next "<!-- end
// -->". It wraps prose at 120 columns, but not tables.
func Insert(file, command, text string) error {
	beginMark := "<!-- begin: written by " + command + " -->"
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(old), beginMark)
	_, after, ended := strings.Cut(rest, endMark)
	if !found || !ended {
		return fmt.Errorf("%s: the markers %q and %q are missing", file, beginMark, endMark)
	}
	return os.WriteFile(file, []byte(before+beginMark+"\n"+broken(text)+endMark+after), 0o644)
}

// columns is the maximum width of prose.
const columns = 120

func broken(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "|") {
			out.WriteString(line)
			continue
		}
		room := columns
		for i, word := range strings.Fields(line) {
			switch n := utf8.RuneCountInString(word); {
			case i == 0:
				room -= n
			case n+1 <= room:
				out.WriteString(" ")
				room -= n + 1
			case strings.HasPrefix(line, "- "):
				out.WriteString("\n  ")
				room = columns - 2 - n
			default:
				out.WriteString("\n")
				room = columns - n
			}
			out.WriteString(word)
		}
		out.WriteString("\n")
	}
	return out.String()
}
