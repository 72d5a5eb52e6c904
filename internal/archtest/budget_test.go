// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	update = flag.Bool("update", false, "write the lines of all folders to "+budgetFile)
	reason = flag.String("reason", "", "why a sum in "+budgetFile+" rises: the feature, and what it is worth")
)

const (
	budgetFile = "budget.txt"
	budgetHead = `# Lines of each folder: of Go, of tests in Go, and of pages (*.md). Generated files, testdata and
# modules of others do not count. TestBudget compares them with the tree, so whoever removes lines lowers them here in
# the same commit:
#
#	go test ./internal/archtest -run Budget -update
#
# A sum rises only with -reason "the feature, and what it is worth". The reasons, the newest last:
#
`
)

// product are the folders of what runs in clusters and beside kubectl, as in hack/change.sh. All else serves to test it
// and to release it.
var product = []string{"addons", "cmd", "convert", "internal", "kubectl-gpu", "pkg"}

// lines are those of a folder, without its subfolders: Go, tests, pages.
type lines [3]int

func (l lines) plus(o lines) lines { return lines{l[0] + o[0], l[1] + o[1], l[2] + o[2]} }

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// walk calls visit with each file below root that is of the project.
func walk(root string, visit func(file string) error) error {
	return filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() {
			return visit(file)
		}
		name := entry.Name()
		if hidden := strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_"); file != root &&
			(hidden || name == "testdata" || name == "node_modules") {
			return filepath.SkipDir
		}
		return nil
	})
}

// count returns the lines of each folder below root.
func count(root string) (map[string]lines, error) {
	all := map[string]lines{}
	err := walk(root, func(file string) error {
		kind := 0
		switch {
		case strings.HasSuffix(file, ".md"):
			kind = 2
		case strings.HasSuffix(file, "_test.go"):
			kind = 1
		case !strings.HasSuffix(file, ".go"):
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil || kind < 2 && generated.Match(text) {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(file))
		of := all[folder]
		of[kind] += bytes.Count(text, []byte("\n"))
		all[folder] = of
		return err
	})
	return all, err
}

// sums returns the lines of the product and of everything.
func sums(folders map[string]lines) (ofProduct, ofAll lines) {
	for folder, n := range folders {
		ofAll = ofAll.plus(n)
		if top, _, _ := strings.Cut(folder, "/"); slices.Contains(product, top) {
			ofProduct = ofProduct.plus(n)
		}
	}
	return ofProduct, ofAll
}

// table returns the part of the file below the reasons.
func table(folders map[string]lines) string {
	var b strings.Builder
	row := func(name string, n lines) { fmt.Fprintf(&b, "%-44s %7d %7d %7d\n", name, n[0], n[1], n[2]) }
	ofProduct, ofAll := sums(folders)
	fmt.Fprintf(&b, "%-44s %7s %7s %7s\n", "# folder", "Go", "tests", "pages")
	row("product", ofProduct)
	row("all", ofAll)
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		row(folder, folders[folder])
	}
	return b.String()
}

// parse splits the file into its head with the reasons and the lines of each folder.
func parse(text string) (head string, folders map[string]lines, err error) {
	head, rows, _ := strings.Cut(text, "# folder")
	folders = map[string]lines{}
	for i, row := range strings.Split(strings.TrimSpace(rows), "\n") {
		var name string
		var n lines
		if i < 3 { // the names of the columns, and the sums
			continue
		}
		if _, err := fmt.Sscan(row, &name, &n[0], &n[1], &n[2]); err != nil {
			return "", nil, fmt.Errorf("%s: %q: %w; want a folder and three numbers", budgetFile, row, err)
		}
		folders[name] = n
	}
	return head, folders, nil
}

// raised describes the sums that rise; empty: none does.
func raised(before, after map[string]lines) string {
	var all []string
	oldProduct, oldAll := sums(before)
	newProduct, newAll := sums(after)
	for i, name := range []string{"lines of Go", "lines of tests", "lines of pages"} {
		if d := newProduct[i] - oldProduct[i]; d > 0 {
			all = append(all, fmt.Sprintf("product %+d %s", d, name))
		}
		if d := newAll[i] - oldAll[i]; d > 0 {
			all = append(all, fmt.Sprintf("all %+d %s", d, name))
		}
	}
	return strings.Join(all, ", ")
}

// TestBudget: the lines of each folder are those of the file, so that a change says what it adds and removes.
func TestBudget(t *testing.T) {
	folders, err := count("../..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(budgetFile)
	if err != nil && !(*update && os.IsNotExist(err)) {
		t.Fatal(err)
	}
	head, before, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if len(text) == 0 {
			head, before = budgetHead, folders
		}
		if more := raised(before, folders); more != "" {
			if *reason == "" {
				t.Fatalf("%s: give the -reason", more)
			}
			head += fmt.Sprintf("# %s %s: %s\n", time.Now().UTC().Format(time.DateOnly), more, *reason)
		}
		if err := os.WriteFile(budgetFile, []byte(head+table(folders)), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, want := table(folders), strings.TrimPrefix(string(text), head); got != want {
		for _, folder := range slices.Sorted(maps.Keys(folders)) {
			if folders[folder] != before[folder] {
				t.Errorf("%s has %v lines of Go, tests and pages; %s says %v", folder, folders[folder], budgetFile,
					before[folder])
			}
		}
		t.Errorf("go test ./internal/archtest -run Budget -update writes the file; %s", raised(before, folders))
	}
}

// TestClusterPackages: who works on one package of the cluster's part can read it in a day.
func TestClusterPackages(t *testing.T) {
	const most = 2500
	larger := map[string]int{"internal/cluster": 2950} // the model: what a claim asks for is to be a package of its own
	folders, err := count("../..")
	if err != nil {
		t.Fatal(err)
	}
	for folder, of := range folders {
		for _, part := range []string{"internal/cluster", "internal/controller", "internal/why"} {
			if bound := max(most, larger[folder]); strings.HasPrefix(folder+"/", part+"/") && of[0] > bound {
				t.Errorf("%s has %d lines of Go, more than %d", folder, of[0], bound)
			}
		}
	}
}

// What is counted, and what raises a sum.
func TestCount(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"pkg/a/a.go":            "package a\n\nvar A int\n",
		"pkg/a/a_test.go":       "package a\n",
		"pkg/a/made.go":         "// Code generated by x. DO NOT EDIT.\npackage a\n",
		"pkg/a/testdata/b.go":   "package b\n",
		"docs/a.md":             "# A\n\nText.\n",
		"_output/c.go":          "package c\n",
		"deployments/a/doc.txt": "no\n",
	} {
		file = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := count(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]lines{"pkg/a": {3, 1, 0}, "docs": {0, 0, 3}}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	head, again, err := parse("# why\n" + table(got))
	if err != nil || head != "# why\n" || !maps.Equal(again, got) {
		t.Errorf("read again: got %q, %v, %v", head, again, err)
	}
	moved := map[string]lines{"cmd/a": {3, 1, 0}, "docs": {0, 0, 2}}
	if more := raised(got, moved); more != "" {
		t.Errorf("after a move: %s", more)
	}
	moved["test/a"] = lines{5, 0, 0}
	moved["cmd/a"] = lines{4, 0, 0}
	if more, want := raised(got, moved), "product +1 lines of Go, all +6 lines of Go"; more != want {
		t.Errorf("got %q, want %q", more, want)
	}
}
