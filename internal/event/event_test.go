// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpudra/gpu-dra-driver/internal/event"
)

func TestText(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"short", "GPU 0 is lost", "GPU 0 is lost"},
		{"as long as can be", strings.Repeat("x", 1024), strings.Repeat("x", 1024)},
		{"too long", strings.Repeat("x", 1025), strings.Repeat("x", 1021) + "…"},
		{"cut inside a character", strings.Repeat("x", 1020) + "éééé", strings.Repeat("x", 1020) + "…"},
	} {
		got := event.Text(row.text)
		if got != row.want || len(got) > 1024 || !utf8.ValidString(got) {
			t.Errorf("%s: got %d bytes %q, want %q", row.name, len(got), got, row.want)
		}
	}
}

// What to do is never cut off, however long the cause is.
func TestJoin(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, row := range []struct{ name, cause, advice, want string }{
		{"short", "it waits", "smallest change: none", "it waits; smallest change: none"},
		{"no advice", x(1025), "", x(1021) + "…"},
		{"a long cause", x(2000), "do it", x(1014) + "…; do it"},
		{"a long advice too", x(2000), strings.Repeat("y", 2000), x(253) + "…; " + strings.Repeat("y", 763) + "…"},
		{"cut inside a character", strings.Repeat("é", 1000), "do it", strings.Repeat("é", 507) + "…; do it"},
	} {
		got := event.Join(row.cause, row.advice)
		if got != row.want || len(got) > 1024 || !utf8.ValidString(got) {
			t.Errorf("%s: got %d bytes %q, want %q", row.name, len(got), got, row.want)
		}
	}
}
