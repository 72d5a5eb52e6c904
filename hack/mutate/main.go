// SPDX-License-Identifier: Apache-2.0

// Mutate changes one thing at a time in the product's code and says which test finds it. What no test finds is either a
// hole in the tests or code that nobody needs. The same seed makes the same changes of the same code. The changed code
// may do anything: run it in a container, or as a user who can do no harm.
//
//	go run ./hack/mutate -n 100 -seed 1 >mutations.md
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	n := flag.Int("n", 100, "`number` of mutations")
	seed := flag.Uint64("seed", 1, "`seed` of the choice")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *n, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// mutation replaces the text from an offset to another one of a file.
type mutation struct {
	pkg, file string
	line      int
	from, to  int
	old, text string
}

func (m mutation) String() string {
	text := m.text
	if text == "" {
		text = "nothing"
	}
	return strings.ReplaceAll(fmt.Sprintf("`%s` → `%s`", m.old, text), "|", `\|`)
}

// goPackage is a package as go list has it.
type goPackage struct {
	ImportPath, Dir                 string
	GoFiles                         []string
	Deps, TestImports, XTestImports []string
	TestGoFiles, XTestGoFiles       []string
}

func run(ctx context.Context, out io.Writer, n int, seed uint64) error {
	packages, err := list(ctx)
	if err != nil {
		return err
	}
	var all []mutation
	for _, p := range packages {
		for _, file := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				return err
			}
			more, err := mutationsOf(filepath.Join(p.Dir, file), text)
			if err != nil {
				return err
			}
			for _, m := range more {
				m.pkg = p.ImportPath
				all = append(all, m)
			}
		}
	}
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // it is to be the same each time
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	var rows []string
	found := 0
	for batch := range slices.Chunk(all, parallel) {
		answers, errs := make([]string, len(batch)), make([]error, len(batch))
		var wg sync.WaitGroup
		for i, m := range batch {
			wg.Go(func() { answers[i], errs[i] = judge(ctx, packages, m) })
		}
		wg.Wait()
		for i, m := range batch {
			if len(rows) == n || errors.Is(errs[i], errNotGo) {
				continue
			}
			file, err := filepath.Rel(here, m.file)
			if err := errors.Join(err, errs[i]); err != nil {
				return fmt.Errorf("%s:%d: %w", m.file, m.line, err)
			}
			if answers[i] != nobody {
				found++
			}
			rows = append(rows, fmt.Sprintf("| %s:%d | %s | %s |", file, m.line, m, answers[i]))
			fmt.Fprintln(os.Stderr, rows[len(rows)-1])
		}
		if len(rows) == n {
			break
		}
	}
	slices.Sort(rows)
	_, err = fmt.Fprintf(out, "| place | change | found by |\n|---|---|---|\n%s\n\n%d of %d are found (seed %d, %d "+
		"possible).\n", strings.Join(rows, "\n"), found, len(rows), seed, len(all))
	return err
}

// list returns the packages of the product.
func list(ctx context.Context) ([]goPackage, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-json=ImportPath,Dir,GoFiles,Deps,TestImports,XTestImports,"+
		"TestGoFiles,XTestGoFiles", "./cmd/...", "./convert/...", "./internal/...", "./kubectl-gpu/...", "./pkg/...")
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var all []goPackage
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

// opposite are the operators that replace each other.
var opposite = map[token.Token]string{token.EQL: "!=", token.NEQ: "==", token.LSS: "<=", token.LEQ: "<",
	token.GTR: ">=", token.GEQ: ">", token.LAND: "||", token.LOR: "&&"}

// logs matches a call that only tells what happens.
var logs = regexp.MustCompile(`\.(Info|Error|Infof|Errorf)\(`)

// mutationsOf returns what can be changed in a file: an operator, a condition, true and false, an error that is
// returned, and a statement that only calls something.
func mutationsOf(file string, text []byte) ([]mutation, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, text, parser.ParseComments)
	if err != nil || ast.IsGenerated(tree) {
		return nil, err
	}
	var all []mutation
	add := func(from, to token.Pos, instead string) {
		m := mutation{file: file, line: set.Position(from).Line, from: set.Position(from).Offset,
			to: set.Position(to).Offset, text: instead}
		if m.old = string(text[m.from:m.to]); strings.Count(m.old, "\n") == 0 {
			all = append(all, m)
		}
	}
	ast.Inspect(tree, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.BinaryExpr:
			if instead := opposite[node.Op]; instead != "" {
				add(node.OpPos, node.OpPos+token.Pos(len(node.Op.String())), instead)
			}
		case *ast.IfStmt:
			from, to := set.Position(node.Cond.Pos()).Offset, set.Position(node.Cond.End()).Offset
			add(node.Cond.Pos(), node.Cond.End(), "!("+string(text[from:to])+")")
		case *ast.Ident:
			if instead := map[string]string{"true": "false", "false": "true"}[node.Name]; instead != "" {
				add(node.Pos(), node.End(), instead)
			}
		case *ast.ReturnStmt:
			if n := len(node.Results); n > 0 {
				if last, ok := node.Results[n-1].(*ast.Ident); ok && last.Name == "err" {
					add(last.Pos(), last.End(), "nil")
				}
			}
		case *ast.ExprStmt:
			if !logs.Match(text[set.Position(node.Pos()).Offset:set.Position(node.End()).Offset]) {
				add(node.Pos(), node.End(), "")
			}
		}
		return true
	})
	return all, nil
}

const nobody = "**nobody**"

// parallel is how many mutations are judged at the same time: many tests wait most of the time.
const parallel = 3

// patience is how long the tests of one package may take.
const patience = 5 * time.Minute

// judge returns what finds the mutation: the first test that fails, of the package or else of those that use it. Error:
// errNotGo.
func judge(ctx context.Context, packages []goPackage, m mutation) (by string, err error) {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	text, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	mutated, overlay := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json")
	changed := slices.Concat(text[:m.from], []byte(m.text), text[m.to:])
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{m.file: mutated}})
	err = errors.Join(err, os.WriteFile(mutated, changed, 0o600), os.WriteFile(overlay, replace, 0o600))
	if err != nil {
		return "", err
	}
	own, users := testers(packages, m.pkg)
	for _, tested := range [][]string{own, users} {
		if len(tested) == 0 {
			continue
		}
		if by, err := fails(ctx, overlay, tested); by != "" || err != nil {
			return by, err
		}
	}
	return nobody, nil
}

// testers returns the package if it has tests, and those with tests that use it.
func testers(packages []goPackage, of string) (own, users []string) {
	for _, p := range packages {
		switch {
		case len(p.TestGoFiles)+len(p.XTestGoFiles) == 0:
		case p.ImportPath == of:
			own = append(own, of)
		case slices.Contains(slices.Concat(p.Deps, p.TestImports, p.XTestImports), of):
			users = append(users, p.ImportPath)
		}
	}
	return own, users
}

// errNotGo means that the compiler refuses the changed code.
var errNotGo = errors.New("it does not compile")

var failed = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// fails returns the first test that fails in the packages; empty: none does.
func fails(ctx context.Context, overlay string, packages []string) (string, error) {
	args := slices.Concat([]string{"test", "-overlay", overlay, "-failfast", "-timeout", patience.String()}, packages)
	output, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	switch match := failed.FindSubmatch(output); {
	case err == nil:
		return "", nil
	case match != nil:
		return "`" + string(match[1]) + "`", nil
	case bytes.Contains(output, []byte("[build failed]")):
		return "", errNotGo
	}
	return "tests that do not end, or crash", nil
}
