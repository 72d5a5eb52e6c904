// SPDX-License-Identifier: Apache-2.0

package hack

import (
	"flag"
	"fmt"
	"go/doc"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// quoted is text in backticks.
var quoted = regexp.MustCompile("`([^`]+)`")

// subject is what the first sentence of a package begins with.
var subject = regexp.MustCompile(`^(Package|Command) [\w-]+ `)

var update = flag.Bool("update", false, "write the table of folders from the comments of packages")

// TestFolders: docs/project/folders.md has the first sentence of each Go package, and lists by hand every other
// top-level folder and Go module.
func TestFolders(t *testing.T) {
	const file, begin, end = "../docs/project/folders.md", "<!-- generated: folders -->\n", "<!-- end -->"
	rows, others := map[string]string{}, map[string]bool{} // dir → sentence; dirs to be listed by hand
	for _, name := range repositoryFiles(t) {
		dir := path.Dir(name)
		top, _, inside := strings.Cut(name, "/")
		others[top] = others[top] || inside
		switch {
		case path.Base(name) == "go.mod":
			others[dir] = dir != "."
		case path.Ext(name) != ".go" || strings.Contains(dir+"/", "/testdata/") || rows[dir] != "":
		default:
			rows[dir] = sentenceOf(t, name)
		}
	}
	if len(rows) < 100 {
		t.Fatalf("got %d packages, want those of the repository", len(rows))
	}
	var table strings.Builder
	table.WriteString("| folder | its package |\n|---|---|\n")
	for _, dir := range slices.Sorted(maps.Keys(rows)) {
		if rows[dir] == "" {
			t.Errorf("%s: no comment says what the package does", dir)
		}
		fmt.Fprintf(&table, "| `%s` | %s |\n", dir, rows[dir])
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(text), begin)
	got, tail, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s has no place for the table", file)
	}
	for dir := range others {
		if others[dir] && rows[dir] == "" && !strings.Contains(head, "\n| `"+dir+"` | ") {
			t.Errorf("%s has no row in the first table of %s", dir, file)
		}
	}
	for _, cells := range tableRows(t, file, "## Without a Go package") {
		wantFiles(t, "folders", cells[0])
	}
	if got == table.String() {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date: go test ./hack -run Folders -update", file)
	}
	if err := os.WriteFile(file, []byte(head+begin+table.String()+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// sentenceOf is the first sentence of the comment on the package in the file, without its subject.
func sentenceOf(t *testing.T, name string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", name), nil,
		parser.PackageClauseOnly|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return subject.ReplaceAllString(new(doc.Package).Synopsis(file.Doc.Text()), "")
}

// TestWhereAChangeGoes: the files that docs/project/changes.md names exist, and have the tests that it names.
func TestWhereAChangeGoes(t *testing.T) {
	rows := tableRows(t, "../docs/project/changes.md", "# Where a change goes")
	if len(rows) < 12 {
		t.Errorf("got %d rows, want at least 12", len(rows))
	}
	for _, cells := range rows {
		if len(cells) != 3 {
			t.Errorf("row %q: got %d cells, want 3", cells, len(cells))
			continue
		}
		for _, cell := range cells[1:] {
			wantFiles(t, cells[0], cell)
		}
	}
}

// TestThreatModel: each line of docs/operate/security.md has a test that exists.
func TestThreatModel(t *testing.T) {
	n := 0
	for _, heading := range []string{"## A user of a namespace", "## A program in a container with a GPU",
		"## A stolen token of the driver", "## A user or program of a node", "## An administrator's mistake"} {
		for _, cells := range tableRows(t, "../docs/operate/security.md", heading) {
			if n++; len(cells) != 3 || !strings.Contains(cells[2], "_test.go` `") {
				t.Errorf("row %q: want an attack, what stops it and a test", cells)
				continue
			}
			wantFiles(t, cells[0], cells[2])
		}
	}
	if n < 20 {
		t.Errorf("got %d rows, want at least 20", n)
	}
}

// wantFiles checks that the cell names files, that they exist, and that each has the tests behind its name.
func wantFiles(t *testing.T, row, cell string) {
	t.Helper()
	found := quoted.FindAllStringSubmatch(cell, -1)
	if len(found) == 0 {
		t.Errorf("row %q: %q names no file", row, cell)
	}
	last := ""
	for _, match := range found {
		if testName.MatchString(match[1]) {
			wantTest(t, last, match[1])
			continue
		}
		last = match[1]
		if _, err := os.Stat(filepath.Join("..", last)); err != nil {
			t.Errorf("row %q: %s does not exist", row, last)
		}
	}
}

// testName is a test function or a method of a suite.
var testName = regexp.MustCompile(`^(Test|Fuzz|test)[A-Z]\w*$`)

// wantTest checks that the file declares the test.
func wantTest(t *testing.T, file, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", file))
	if err != nil || !regexp.MustCompile(`(?m)^func (\(.*\) )?`+name+`\(`).Match(text) {
		t.Errorf("%s has no %s", file, name)
	}
}

// TestBinariesAreIgnored: `go build ./cmd/x` leaves the program x in the folder where it runs.
func TestBinariesAreIgnored(t *testing.T) {
	ignored, err := os.ReadFile("../.gitignore")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(ignored), "\n")
	for _, pattern := range []string{"../cmd/*", "../simulator/cmd/*"} {
		dirs, err := filepath.Glob(pattern)
		if err != nil || len(dirs) == 0 {
			t.Fatalf("%s: got %v and error %v, want folders", pattern, dirs, err)
		}
		for _, dir := range dirs {
			if name := "/" + filepath.Base(dir); !slices.Contains(lines, name) {
				t.Errorf(".gitignore has no line %s", name)
			}
		}
	}
}

// repositoryFiles are the files that git knows or would add, without those that are deleted.
func repositoryFiles(t *testing.T) []string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = ".."
	output, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(strings.Split(strings.TrimRight(string(output), "\x00"), "\x00"), func(name string) bool {
		_, err := os.Stat(filepath.Join("..", name))
		return err != nil
	})
}

// tableRows are the cells of the table below the heading, without its head.
func tableRows(t *testing.T, file, heading string) [][]string {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut("\n"+string(page), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", file, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var rows [][]string
	for line := range strings.SplitSeq(section, "\n") {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		rows = append(rows, cells)
	}
	if len(rows) < 3 {
		t.Fatalf("%s has no table below %q", file, heading)
	}
	return rows[2:]
}
