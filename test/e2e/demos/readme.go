// SPDX-License-Identifier: Apache-2.0

package demos

import (
	"errors"
	"regexp"
	"strings"
)

// fence opens the block of a README with the expected output.
const fence = "```text expected"

// errNoExpected means that a README has no expected output.
var errNoExpected = errors.New("no block that begins with " + fence)

// asked returns the first paragraph of a README on one line: the demo's request in plain words.
func asked(readme string) string {
	var words []string
	for line := range strings.Lines(readme) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#"):
		case line == "" && len(words) > 0:
			return strings.Join(words, " ")
		case line != "":
			words = append(words, line)
		}
	}
	return strings.Join(words, " ")
}

// expected returns the lines of the README's expected block.
func expected(readme string) ([]string, error) {
	_, after, ok := strings.Cut("\n"+readme, "\n"+fence+"\n")
	if !ok {
		return nil, errNoExpected
	}
	block, _, ok := strings.Cut(after, "\n```")
	if !ok {
		return nil, errors.New("the block that begins with " + fence + " has no end")
	}
	return strings.Split(block, "\n"), nil
}

var placeholder = regexp.MustCompile(`<[a-z][a-z0-9-]*>`)

// Bindings maps the placeholders of a block to the text that they matched so far.
type Bindings map[string]string

// match reports whether a line matches a line of the block. A placeholder <word> matches any text, but the same text in
// the whole block. Only a match adds to the bindings.
func (b Bindings) match(want, got string) bool {
	pattern, words := "", []string{}
	rest := want
	for _, at := range placeholder.FindAllStringIndex(want, -1) {
		pattern += regexp.QuoteMeta(rest[:at[0]-(len(want)-len(rest))])
		word := want[at[0]:at[1]]
		rest = want[at[1]:]
		if text, ok := b[word]; ok {
			pattern += regexp.QuoteMeta(text)
			continue
		}
		pattern += "(.+?)"
		words = append(words, word)
	}
	found := regexp.MustCompile("^" + pattern + regexp.QuoteMeta(rest) + "$").FindStringSubmatch(got)
	if found == nil {
		return false
	}
	bound := map[string]string{}
	for i, word := range words {
		if text, ok := bound[word]; ok && text != found[i+1] {
			return false
		}
		bound[word] = found[i+1]
	}
	for word, text := range bound {
		b[word] = text
	}
	return true
}

// fill replaces the placeholders in a line of the block.
func (b Bindings) fill(line string) string {
	return placeholder.ReplaceAllStringFunc(line, func(word string) string {
		if text, ok := b[word]; ok {
			return text
		}
		return word
	})
}
