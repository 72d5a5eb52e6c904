// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// document is one document of a file.
type document struct {
	text []byte
	line int // of its beginning in the file, from 1
}

// documents splits a file. Nothing is left out.
func documents(text []byte) []document {
	all := []document{{line: 1}}
	n := 0
	for line := range bytes.Lines(text) {
		n++
		rest, separates := bytes.CutPrefix(line, []byte("---"))
		if separates && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n")) {
			all = append(all, document{line: n})
			line = rest
			if len(bytes.TrimSpace(rest)) == 0 {
				line = []byte("\n") // its lines keep their numbers
			}
		}
		last := &all[len(all)-1]
		last.text = append(last.text, line...)
	}
	return all
}

// isBlank reports whether there is nothing in the document.
func (d document) isBlank() bool { return len(bytes.TrimSpace(d.text)) == 0 }

// parse returns the object of the document, and the same with line numbers; nil: it has none.
func (d document) parse() (object map[string]any, node *yamlv3.Node, err error) {
	decoder := yamlv3.NewDecoder(bytes.NewReader(d.text))
	node = &yamlv3.Node{}
	if err := decoder.Decode(node); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil, nil
		}
		return nil, nil, err
	}
	if err := decoder.Decode(&yamlv3.Node{}); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("it has a second document without the line ---")
	}
	if node = node.Content[0]; node.Kind != yamlv3.MappingNode {
		return nil, nil, nil
	}
	text, err := yaml.YAMLToJSON(d.text)
	if err != nil {
		return nil, nil, err
	}
	return object, node, kjson.UnmarshalCaseSensitivePreserveInts(text, &object)
}

// Place is where a document has the name of a resource or an annotation of an older system that was not converted.
type Place struct {
	Line       int // in the file
	Path, Name string
}

func (p Place) String() string {
	return fmt.Sprintf("%s has %s, in a place that this program does not know", p.Path, p.Name)
}

// seeker looks for names of older systems in a document.
type seeker struct {
	Converter
	skip  map[string]bool // paths of what is converted, or asks for nothing
	line  int             // of the document
	seen  map[*yamlv3.Node]bool
	found []Place
}

// maxPlaces is the number of places that are told for one object.
const maxPlaces = 20

// seek looks into a node.
func (s *seeker) seek(node *yamlv3.Node, path string) {
	if s.skip[path] || s.seen[node] || len(s.found) == maxPlaces {
		return
	}
	s.seen[node] = true // also by another alias
	switch node.Kind {
	case yamlv3.AliasNode:
		s.seek(node.Alias, path)
	case yamlv3.SequenceNode:
		for i, item := range node.Content {
			s.seek(item, fmt.Sprintf("%s[%d]", path, i))
		}
	case yamlv3.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			key := node.Content[i]
			s.name(key, path, strings.HasSuffix(path, "annotations"))
			s.seek(node.Content[i+1], strings.TrimPrefix(path+"."+key.Value, "."))
		}
	case yamlv3.ScalarNode:
		s.name(node, path, false)
	}
}

// name notes a name of an older system. nvidia.com/gpu is not one: it asks for a GPU here too.
func (s *seeker) name(node *yamlv3.Node, path string, isAnnotation bool) {
	name := node.Value
	for _, prefix := range []string{"requests.", "limits."} { // of quotas
		name = strings.TrimPrefix(name, prefix)
	}
	_, own := s.Names[name]
	for _, f := range families {
		if own || slices.ContainsFunc(f.Resources, func(known corev1.ResourceName) bool {
			return string(known) == name && known != wholeGPU
		}) || isAnnotation && f.isAnnotation(name) {
			s.found = append(s.found, Place{s.line + node.Line - 1, path, name})
			return
		}
	}
}
