// SPDX-License-Identifier: Apache-2.0

package hack

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// The longest line of Go and of the prose of pages. A tab counts as four columns.
const columns = 120

// TestColumns: no line is too long. In Go, raw strings may be, such as YAML. In pages, tables, the targets of links and
// what stands in fences may be.
func TestColumns(t *testing.T) {
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard",
		"*.go", "*.md")
	list.Dir = ".."
	files, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for name := range strings.SplitSeq(strings.TrimRight(string(files), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join("..", name))
		if os.IsNotExist(err) || strings.Contains(name, "/testdata/") || strings.HasPrefix(filepath.Base(name),
			"zz_generated") {
			continue // deleted and not yet committed, or not written by hand
		}
		if err != nil {
			t.Fatal(err)
		}
		checked++
		long := longInGo
		if strings.HasSuffix(name, ".md") {
			long = longInPage
		}
		for _, line := range long(text) {
			t.Errorf("%s:%s", name, line)
		}
	}
	if checked < 100 {
		t.Errorf("%d files looked at, want those of the repository", checked)
	}
}

// TestSizes: nothing large is committed, such as a program that somebody has compiled here.
func TestSizes(t *testing.T) {
	const most = 256 << 10
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	list.Dir = ".."
	files, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(files), "\x00"), "\x00") {
		if file, err := os.Lstat(filepath.Join("..", name)); err == nil && file.Size() > most {
			t.Errorf("%s has %d KiB, want at most %d: is it made from sources?", name, file.Size()>>10, most>>10)
		}
	}
}

func TestLongLines(t *testing.T) {
	long := strings.Repeat("long ", 24)
	for _, row := range []struct {
		name  string
		check func([]byte) []string
		text  string
		want  string
	}{
		{"a comment", longInGo, "package x\n\n// " + long, "3: 123 columns"},
		{"tabs", longInGo, "package x\n\n\t\t\t\t" + long[:110], "3: 126 columns"},
		{"a raw string", longInGo, "package x\n\nvar a = `" + long + "`", ""},
		{"code after a raw string that ends", longInGo, "package x\n\nvar a = `\n` + \"" + long + "\"",
			"4: 126 columns"},
		{"prose", longInPage, "a\n\n" + long + "a", "3: 121 columns"},
		{"letters of several bytes", longInPage, strings.Repeat("é", columns), ""},
		{"a table", longInPage, "| " + long + "|", ""},
		{"a fence", longInPage, "```\n" + long + "a\n```\n" + long + "a", "4: 121 columns"},
		{"code in prose at the beginning of a line", longInPage, "```` ```text ````\n" + long + "a", "2: 121 columns"},
		{"a link with a long target", longInPage, "[a](" + strings.Repeat("x", 130) + ")", ""},
		{"a link in long prose", longInPage, long + "[a](x)", "1: 123 columns"},
	} {
		if got := strings.Join(row.check([]byte(row.text)), ", "); got != row.want {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
	}
}

// longInGo are the lines that are too long, for people.
func longInGo(text []byte) []string {
	lines := bytes.Split(text, []byte("\n"))
	raw := map[int]bool{}
	var found []string
	for i, line := range lines {
		n := width(directive.ReplaceAll(line, nil))
		if n <= columns {
			continue
		}
		if len(raw) == 0 {
			raw = rawLines(text)
		}
		if !raw[i+1] {
			found = append(found, fmt.Sprintf("%d: %d columns", i+1, n))
		}
	}
	return found
}

// rawLines are the numbers of the lines with text of raw strings. The last line of one counts if it has any.
func rawLines(text []byte) map[int]bool {
	set := token.NewFileSet()
	file := set.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	raw := map[int]bool{0: true}
	for {
		pos, kind, literal := s.Scan()
		if kind == token.EOF {
			return raw
		}
		if kind != token.STRING || literal[0] != '`' {
			continue
		}
		first := file.Line(pos)
		for i, part := range strings.Split(strings.Trim(literal, "`"), "\n") {
			if part != "" {
				raw[first+i] = true
			}
		}
	}
}

// directive is a comment for a linter, which has to stand on its line.
var directive = regexp.MustCompile(`\s*//nolint:.*`)

// command is a line that is nothing else than a command.
var command = regexp.MustCompile("^ *`[^`]+`[.,:;]?$")

// fence begins or ends a block of code. A line with more backticks is text with code in it.
var fence = regexp.MustCompile("^```+[^`]*$")

var linkTarget = regexp.MustCompile(`\]\([^)]*\)`)

// longInPage are the lines that are too long, for people.
func longInPage(text []byte) []string {
	fenced := false
	var found []string
	for i, line := range bytes.Split(text, []byte("\n")) {
		start := bytes.TrimLeft(line, " >")
		switch {
		case fence.Match(start):
			fenced = !fenced
			continue
		case fenced, bytes.HasPrefix(start, []byte("|")), command.Match(line):
			continue
		}
		if n := width(linkTarget.ReplaceAll(line, []byte("]"))); n > columns {
			found = append(found, fmt.Sprintf("%d: %d columns", i+1, n))
		}
	}
	return found
}

func width(line []byte) int { return utf8.RuneCount(line) + 3*bytes.Count(line, []byte("\t")) }
