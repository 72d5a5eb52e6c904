// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	namedTest    = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*`)
	declaredTest = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z]\w*)\(`)
)

// TestDocs: a package of more than 1,000 lines says in doc.go what its types are, how they work together, what must
// hold and which tests show it. The tests exist.
func TestDocs(t *testing.T) {
	folders, err := count("../..")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	err = walk("../..", func(file string) error {
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		for _, found := range declaredTest.FindAllStringSubmatch(string(text), -1) {
			tests[found[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for folder, of := range folders {
		if top, _, _ := strings.Cut(folder, "/"); of[0] <= 1000 || !slices.Contains(product, top) {
			continue
		}
		text, err := os.ReadFile(filepath.Join("../..", folder, "doc.go"))
		if err != nil {
			t.Errorf("%s has %d lines of Go: %v", folder, of[0], err)
			continue
		}
		names := namedTest.FindAllString(string(text), -1)
		if lines := strings.Count(string(text), "\n//"); lines < 8 || len(names) == 0 {
			t.Errorf("doc.go of %s has %d lines and names the tests %v; want 8 lines and a test", folder, lines, names)
		}
		for _, name := range names {
			if !tests[name] {
				t.Errorf("doc.go of %s names %s, which does not exist", folder, name)
			}
		}
	}
}
