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

// place is where a document has the name of a resource or an annotation of an older system that was not converted.
type place struct {
	Line       int // in the file
	Path, Name string
}

func (p place) String() string {
	return fmt.Sprintf("%s has %s, in a place that this program does not know", p.Path, p.Name)
}

// seeker looks for names of older systems in a document.
type seeker struct {
	resources []string        // their names
	skip      map[string]bool // paths of what is converted, or asks for nothing
	line      int             // of the document
	seen      map[*yamlv3.Node]bool
	found     []place
}

// maxPlaces is the number of places that are told for one object.
const maxPlaces = 20

// seek notes the names in a node.
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
			if key.Value == lastApplied {
				continue
			}
			s.note(key, path)
			s.seek(node.Content[i+1], strings.TrimPrefix(path+"."+key.Value, "."))
		}
	case yamlv3.ScalarNode:
		s.note(node, path)
	}
}

// note notes a name of an older system in the text of a key or value. Longer texts may be manifests too.
func (s *seeker) note(node *yamlv3.Node, path string) {
	name := ""
	ofFamily := func(f family) bool { return f.isAnnotation(node.Value) }
	if strings.HasSuffix(path, "annotations") && slices.ContainsFunc(families, ofFamily) {
		name = node.Value
	}
	for _, known := range s.resources {
		if strings.Contains(node.Value, known) && len(known) > len(name) {
			name = known
		}
	}
	if name != "" {
		s.found = append(s.found, place{s.line + node.Line - 1, path, name})
	}
}

// lastApplied is the annotation in which kubectl keeps what was applied.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// seeker returns a seeker for a document that begins at that line of its file.
func (m manifests) seeker(line int) *seeker {
	s := &seeker{line: line, skip: map[string]bool{}, seen: map[*yamlv3.Node]bool{}}
	for _, name := range m.removable() {
		if name != wholeGPU { // it asks for a GPU here too
			s.resources = append(s.resources, string(name))
		}
	}
	return s
}
