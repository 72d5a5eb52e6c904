// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	repository   = "../.."
	featuresFile = "test/features.md"
)

var (
	code      = regexp.MustCompile("`([^`]+)`")
	row       = regexp.MustCompile(`(?m)^\| (.+) \| (docs/\S+\.md) \| (.+) \|$`)
	testFunc  = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	subtest   = regexp.MustCompile(`t\.Run\("([^"]+)"`)
	command   = regexp.MustCompile(`(?m)^\t\tUse: +"([a-z]+)[ "]`)
	class     = regexp.MustCompile(`(?m)^  name: \{\{ include "gpu-dra-driver\.([a-z]+)Class"`)
	chartPart = regexp.MustCompile(`(?m)^([a-zA-Z]+):`)
)

// TestFeatures: each row of the table has a page and proofs that exist, and nothing that a user sees lacks a row.
func TestFeatures(t *testing.T) {
	table := read(t, filepath.Join(repository, featuresFile))
	proofs := map[string]bool{} // that exist
	for _, demo := range glob(t, "demo/*/README.md") {
		proofs["demo/"+filepath.Base(filepath.Dir(demo))] = true
	}
	var rows []string // each must have a row
	for proof := range proofs {
		rows = append(rows, "`"+proof+"`")
	}
	for _, file := range glob(t, "*/*_test.go", "*/*/*_test.go", "*/*/*/*_test.go", "*/*/*/*/*_test.go") {
		folder, err := filepath.Rel(repository, filepath.Dir(file))
		if err != nil {
			t.Fatal(err)
		}
		functions := testFunc.FindAllStringSubmatch(read(t, file), -1)
		for _, f := range functions {
			proofs[folder+" "+f[1]] = true
		}
		if folder != "test/e2e" || len(functions) != 1 {
			continue // the subtests of other files are not those of one function
		}
		for _, name := range subtest.FindAllStringSubmatch(read(t, file), -1) {
			proofs[folder+" "+functions[0][1]+"/"+name[1]] = true
		}
	}
	for _, page := range glob(t, "docs/*/*.md") {
		if _, name, _ := strings.Cut(page, "docs/"); !strings.HasPrefix(name, "project/") {
			rows = append(rows, "| docs/"+name+" |")
		}
	}
	for _, of := range []struct {
		what  *regexp.Regexp
		files string
		as    string
	}{
		{command, "kubectl-gpu/commands/*.go", "`NAME`"}, {class, "deployments/helm/gpu-dra-driver/templates/*.yaml",
			"class `NAME`"}, {chartPart, "deployments/helm/gpu-dra-driver/values.yaml", "`NAME`"},
	} {
		found := 0
		for _, file := range glob(t, of.files) {
			for _, name := range of.what.FindAllStringSubmatch(read(t, file), -1) {
				rows = append(rows, strings.ReplaceAll(of.as, "NAME", name[1]))
				found++
			}
		}
		if found == 0 {
			t.Errorf("%s has nothing that matches %s", of.files, of.what)
		}
	}
	for _, want := range rows {
		if !strings.Contains(table, want) {
			t.Errorf("%s has no row with %s", featuresFile, want)
		}
	}
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "| ") && !strings.Contains(line, "| page | shown by |") && !row.MatchString(line) {
			t.Errorf("not a user, a page and proofs: %s", line)
		}
	}
	for _, r := range row.FindAllStringSubmatch(table, -1) {
		if _, err := os.Stat(filepath.Join(repository, r[2])); err != nil {
			t.Errorf("%s: %v", r[1], err)
		}
		shown := code.FindAllStringSubmatch(r[3], -1)
		if len(shown) == 0 {
			t.Errorf("%s: nothing shows it", r[1])
		}
		for _, proof := range shown {
			if !proofs[proof[1]] {
				t.Errorf("%s: there is no %s", r[1], proof[1])
			}
		}
	}
}

func glob(t *testing.T, patterns ...string) (files []string) {
	t.Helper()
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
