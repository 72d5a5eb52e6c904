// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/simulator"
)

var (
	driverBlock = regexp.MustCompile("(?s)\n```text driver\n(.*?)\n```")
	placeholder = regexp.MustCompile(`<[^>]+>|: `) // errors are put together with ": " between the parts
)

// Whoever searches the page for a message of the driver finds it: every part of it is a text of the code or of the
// chart.
func TestTheDriverSaysWhatThePageQuotes(t *testing.T) {
	texts := textsOf(t, "../cmd", "../internal", "../kubectl-gpu", "../pkg", "../simulator",
		"../deployments/helm/gpu-dra-driver/templates")
	blocks := driverBlock.FindAllStringSubmatch(read(t, "operate/troubleshoot.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("the page quotes nothing")
	}
	for _, block := range blocks {
		for _, message := range strings.Split(block[1], "\n") {
			for _, part := range placeholder.Split(message, -1) {
				if part = strings.Trim(part, " :;,/()="); !strings.Contains(texts, part) {
					t.Errorf("nobody says %q of the message %q", part, message)
				}
			}
		}
	}
}

// textsOf are all texts in the programs and in the templates below the folders.
func textsOf(t *testing.T, folders ...string) string {
	t.Helper()
	var texts strings.Builder
	for _, folder := range folders {
		walk(t, folder, func(file string) {
			switch {
			case filepath.Ext(file) == ".yaml" && strings.Contains(file, "/templates/"):
				texts.WriteString(read(t, file))
			case filepath.Ext(file) == ".go" && !strings.HasSuffix(file, "_test.go"):
				parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
				if err != nil {
					t.Fatal(err)
				}
				ast.Inspect(parsed, func(n ast.Node) bool {
					if e, ok := n.(ast.Expr); ok {
						texts.WriteString(operands(e) + "\n")
					}
					return true
				})
			}
		})
	}
	return texts.String()
}

// operands are the texts in the sum of strings, one after the other; what is no text stands between lines.
func operands(n ast.Expr) string {
	switch n := n.(type) {
	case *ast.BasicLit:
		if n.Kind == token.STRING {
			text, _ := strconv.Unquote(n.Value)
			return text
		}
	case *ast.BinaryExpr:
		if n.Op == token.ADD {
			return operands(n.X) + operands(n.Y)
		}
	}
	return "\n"
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	public  = regexp.MustCompile(`https://github\.com/gpudra/gpu-dra-driver/blob/main/([^\s"')]+)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fence   = regexp.MustCompile("(?s)\n```.*?\n```")
	notSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// Every link of every page leads to a file that is there, and to a heading that is in it; so do the links of alerts.
func TestLinks(t *testing.T) {
	check := func(file, folder, target string) {
		t.Helper()
		path, anchor, _ := strings.Cut(target, "#")
		if path == "" {
			path = file
		} else {
			path = filepath.Join(folder, path)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s: link to %s: %v", file, target, err)
		} else if anchor != "" && !hasHeading(read(t, path), anchor) {
			t.Errorf("%s: link to %s: no such heading", file, target)
		}
	}
	walk(t, "..", func(file string) {
		switch filepath.Ext(file) {
		case ".md":
			for _, found := range link.FindAllStringSubmatch(fence.ReplaceAllString(read(t, file), ""), -1) {
				if !strings.Contains(found[1], "://") {
					check(file, filepath.Dir(file), found[1])
				}
			}
		case ".yaml":
			for _, found := range public.FindAllStringSubmatch(read(t, file), -1) {
				check(file, "..", found[1])
			}
		}
	})
}

// hasHeading says whether GitHub makes that anchor for a heading of the page.
func hasHeading(page, anchor string) bool {
	for _, found := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		slug := strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-")
		if slug == anchor {
			return true
		}
	}
	return false
}

// What can be simulated is listed where somebody chooses.
func TestTheProfilesAreListed(t *testing.T) {
	for _, file := range []string{"start/try-without-gpus.md", "../deployments/helm/gpu-dra-driver/values.yaml",
		"../deployments/helm/gpu-dra-driver/templates/NOTES.txt"} {
		for _, profile := range simulator.Profiles() {
			if !strings.Contains(read(t, file), profile) {
				t.Errorf("%s does not name the profile %s", file, profile)
			}
		}
	}
}

// walk calls do with every file of the repository below the folder.
func walk(t *testing.T, folder string, do func(file string)) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == ".git" || name == "_output" || name == "shared") {
			return fs.SkipDir
		}
		if !entry.IsDir() {
			do(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// tooMuch matches sentences that say more than is known: of all, or of nothing, without an exception.
var tooMuch = regexp.MustCompile(`(?i)\b(run on no GPU|nothing here has run|everything works|everything below is|` +
	`all of this is tested|works everywhere|no limits? at all)\b`)

// What a page says of everything, or of nothing, was wrong each time when somebody looked.
func TestNoSentenceSaysTooMuch(t *testing.T) {
	walk(t, "..", func(file string) {
		if filepath.Ext(file) != ".md" {
			return
		}
		if found := tooMuch.FindString(strings.Join(strings.Fields(read(t, file)), " ")); found != "" {
			t.Errorf("%s: %q: say of what, and what not", file, found)
		}
	})
}

// What is behind a link to a branch of somebody else's repository changes, and is no evidence then.
func TestLinksToCodeOfOthersNameACommit(t *testing.T) {
	branch := regexp.MustCompile(`https://github\.com/(\S+?)/(?:blob|tree)/(?:main|master)/`)
	walk(t, "..", func(file string) {
		if filepath.Ext(file) != ".md" {
			return
		}
		for _, link := range branch.FindAllStringSubmatch(read(t, file), -1) {
			if link[1] != "gpudra/gpu-dra-driver" {
				t.Errorf("%s: %s: want a commit or a tag instead of the branch", file, link[0])
			}
		}
	})
}

// What a program has measured has its day and commit, so that a reader sees how old it is. What go test writes is as
// new as the page.
func TestMeasuredTextIsDated(t *testing.T) {
	block := regexp.MustCompile(`<!-- begin: written by (make|go run) .* -->\n(.*)`)
	dated := regexp.MustCompile(`^Measured on \d{4}-\d\d-\d\d at commit [0-9a-f]{7,}`)
	found := 0
	walk(t, "..", func(file string) {
		if filepath.Ext(file) != ".md" {
			return
		}
		for _, text := range block.FindAllStringSubmatch(read(t, file), -1) {
			if found++; !dated.MatchString(text[2]) {
				t.Errorf("%s: got %q, want a text with a day and a commit, as page.Made writes it", file, text[0])
			}
		}
	})
	if found == 0 {
		t.Error("no page has a text that make writes")
	}
}
