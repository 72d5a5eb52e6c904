// SPDX-License-Identifier: Apache-2.0

// Package page writes what was measured into the documentation.
package page

import (
	"fmt"
	"os"
	"strings"
)

const endMark = "<!-- end -->"

// Insert replaces what stands in the file between the mark "<!-- begin: written by COMMAND -->" and the next "<!-- end -->".
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
	return os.WriteFile(file, []byte(before+beginMark+"\n"+text+endMark+after), 0o644)
}
