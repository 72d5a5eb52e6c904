// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// The page about the command lists the kinds of changes in the order in which they are preferred, and the limits.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/use/why.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []ChangeKind
	for line := range strings.Lines(string(page)) {
		if kind, ok := strings.CutPrefix(line, "| `"); ok {
			kind, _, _ = strings.Cut(kind, "`")
			listed = append(listed, ChangeKind(kind))
		}
	}
	if !slices.Equal(listed, kinds) {
		t.Errorf("the page lists %v, want %v", listed, kinds)
	}
	words := strings.Join(strings.Fields(string(page)), " ")
	for _, limit := range []string{fmt.Sprintf("%d,%03d questions", SearchAsked/1000, SearchAsked%1000),
		fmt.Sprintf("%.0f s,", searchTimeout.Seconds()),
		fmt.Sprintf("%d kinds of nodes", maxGroups)} {
		if !strings.Contains(words, limit) {
			t.Errorf("the page lacks %q", limit)
		}
	}
}
