// SPDX-License-Identifier: Apache-2.0

package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInsert(t *testing.T) {
	const begin = "<!-- begin: written by make bench -->\n"
	file := filepath.Join(t.TempDir(), "docs.md")
	for _, row := range []struct{ name, old, want, wantErr string }{
		{"what is between the markers is replaced", "a\n" + begin + "old\n" + endMark + "\nb\n", "a\n" + begin +
			"new\n" + endMark + "\nb\n", ""},
		{"a file without markers is an error", "a\n", "a\n", "markers"},
		{"what another command wrote stays", "<!-- begin: written by make strongest -->\nold\n" + endMark,
			"<!-- begin: written by make strongest -->\nold\n" + endMark, "markers"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(row.old), 0o600); err != nil {
				t.Fatal(err)
			}
			err := Insert(file, "make bench", "new\n")
			if (err != nil) != (row.wantErr != "") || err != nil && !strings.Contains(err.Error(), row.wantErr) {
				t.Errorf("got error %v, want %q", err, row.wantErr)
			}
			if got, _ := os.ReadFile(file); string(got) != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestBroken(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("long ", 24)) // 119 columns
	for _, row := range []struct{ text, want string }{
		{"a\n\n" + long + "\n", "a\n\n" + long + "\n"},
		{long + " x\n", long + "\nx\n"},
		{"- " + long + "\n", "- " + strings.TrimSuffix(long, " long") + "\n  long\n"},
		{"| " + long + " x |\n", "| " + long + " x |\n"},
	} {
		if got := broken(row.text); got != row.want {
			t.Errorf("%q:\ngot  %q\nwant %q", row.text, got, row.want)
		}
	}
}
