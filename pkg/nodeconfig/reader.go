// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A reader continues after a mistake, so that it reports all of them at once.
type reader struct {
	problems []problem
	warnings []string
}

type problem struct {
	line int
	text string
}

// problem reports a mistake: where it is, what it is, what is accepted.
func (r *reader) problem(line int, path, format string, args ...any) {
	r.problems = append(r.problems, problem{line, at(line, path, format, args...)})
}

// warning reports a setting without effect.
func (r *reader) warning(line int, path, format string, args ...any) {
	r.warnings = append(r.warnings, at(line, path, format, args...))
}

func at(line int, path, format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	if path != "" {
		text = path + ": " + text
	}
	return fmt.Sprintf("line %d: %s", line, text)
}

// err returns all mistakes in the order of the text, nil if there are none.
func (r *reader) err() error {
	slices.SortStableFunc(r.problems, func(a, b problem) int { return cmp.Compare(a.line, b.line) })
	var errs []error
	for _, p := range r.problems {
		errs = append(errs, errors.New(p.text))
	}
	return errors.Join(errs...)
}

// document returns the root of the only YAML document in the text, nil if it cannot be read.
func (r *reader) document(text []byte) *yaml.Node {
	documents, err := parse(text)
	switch {
	case err != nil:
		r.problem(wrongLine(text), "", "%s", syntaxError.ReplaceAllString(err.Error(), ""))
	case len(documents) == 0:
		r.problem(1, "", "empty")
	case len(documents) > 1:
		r.problem(documents[1].Line, "", "a second YAML document: want one")
	default:
		return resolve(documents[0].Content[0])
	}
	return nil
}

// parse parses all YAML documents in the text.
func parse(text []byte) ([]*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for documents := []*yaml.Node{}; ; {
		var n yaml.Node
		if err := decoder.Decode(&n); errors.Is(err, io.EOF) {
			return documents, nil
		} else if err != nil {
			return nil, err
		}
		documents = append(documents, &n)
	}
}

// syntaxError matches the start of the parser's message. Its line is often that of the block around the mistake, or one
// too low.
var syntaxError = regexp.MustCompile(`^yaml: (line \d+: )?`)

// wrongLine returns the first line up to which the text does not parse, among the first thousand.
func wrongLine(text []byte) int {
	lines := bytes.SplitAfterN(text, []byte("\n"), 1000)
	for n := len(lines) - 1; n > 0; n-- {
		if _, err := parse(bytes.Join(lines[:n], nil)); err == nil {
			return n + 1
		}
	}
	return 1
}

// fields returns the values of a map by name, none of them nil.
func (r *reader) fields(path string, n *yaml.Node, accepted ...string) map[string]*yaml.Node {
	if n.Kind != yaml.MappingNode {
		r.problem(n.Line, path, "%s: want a map with the fields %s", show(n), strings.Join(accepted, ", "))
		return nil
	}
	found := map[string]*yaml.Node{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case found[key.Value] != nil:
			r.problem(key.Line, join(path, key.Value), "given twice")
		case !slices.Contains(accepted, key.Value):
			r.problem(key.Line, join(path, key.Value), "unknown field; accepted here: %s", strings.Join(accepted, ", "))
		default:
			found[key.Value] = resolve(n.Content[i+1])
		}
	}
	return found
}

// list calls item for every item of a list.
func (r *reader) list(path string, n *yaml.Node, item func(path string, n *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		r.problem(n.Line, path, "%s: want a list", show(n))
		return
	}
	for i, one := range n.Content {
		item(fmt.Sprintf("%s[%d]", path, i), resolve(one))
	}
}

// text reads a non-empty string.
func (r *reader) text(path string, n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Value == "" || n.Tag == "!!null" {
		r.problem(n.Line, path, "%s: want a string", show(n))
		return "", false
	}
	return n.Value, true
}

// number reads an integer in a range.
func (r *reader) number(path string, n *yaml.Node, least, most int) (int, bool) {
	v, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || v < least || v > most {
		r.problem(n.Line, path, "%s: want a whole number from %d to %d", show(n), least, most)
		return 0, false
	}
	return v, true
}

// boolean reads true or false; a missing field (nil) is false.
func (r *reader) boolean(path string, n *yaml.Node) bool {
	if n == nil {
		return false
	}
	var v bool
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Decode(&v) != nil {
		r.problem(n.Line, path, "%s: want true or false", show(n))
	}
	return v
}

// constant reports a field that is missing or does not have the only accepted value.
func (r *reader) constant(parent *yaml.Node, fields map[string]*yaml.Node, name, want string) {
	if n := fields[name]; n == nil {
		r.problem(parent.Line, name, "missing: want %s", want)
	} else if n.Kind != yaml.ScalarNode || n.Value != want {
		r.problem(n.Line, name, "%s: want %s", show(n), want)
	}
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// has reports whether a map has any of the fields.
func has(n *yaml.Node, names ...string) bool {
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if slices.Contains(names, n.Content[i].Value) {
			return true
		}
	}
	return false
}

// show formats the node as it looks in the text.
func show(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Value == "":
		return "nothing"
	}
	return strconv.Quote(n.Value)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
