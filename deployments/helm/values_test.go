// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/gpudra/gpu-dra-driver/test/page"
)

// value is a value of the chart.
type value struct{ path, text, description string }

// kubernetesFields are values whose names say enough: fields of pods, containers and service accounts.
var kubernetesFields = []string{"nodeSelector", "affinity", "tolerations", "priorityClassName", "resources",
	"podAnnotations", "podLabels", "annotations", "terminationGracePeriodSeconds", "pullPolicy", "nameOverride",
	"fullnameOverride"}

// values returns the values of the chart, with the comments of values.yaml.
func values(t *testing.T) []value {
	t.Helper()
	var document yamlv3.Node
	if err := yamlv3.Unmarshal([]byte(read(t, chart+"/values.yaml")), &document); err != nil {
		t.Fatal(err)
	}
	return valuesOf(t, "", document.Content[0])
}

func valuesOf(t *testing.T, prefix string, mapping *yamlv3.Node) []value {
	t.Helper()
	var all []value
	for i := 0; i < len(mapping.Content); i += 2 {
		key, node := mapping.Content[i], mapping.Content[i+1]
		path := prefix + key.Value
		if node.Kind == yamlv3.MappingNode && node.Style&yamlv3.FlowStyle == 0 && key.Value != "resources" {
			all = append(all, valuesOf(t, path+".", node)...)
			continue
		}
		var content any
		if err := node.Decode(&content); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, value{path, string(text), firstParagraph(key.HeadComment)})
	}
	return all
}

// firstParagraph returns the text of a comment up to an empty line or an example.
func firstParagraph(comment string) string {
	var words []string
	for line := range strings.Lines(comment) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#"))
		if line == "" {
			break
		}
		words = append(words, line)
	}
	text, _, _ := strings.Cut(strings.Join(words, " "), " For example:")
	return text
}

// inCell escapes what has a meaning in a cell of a table.
var inCell = strings.NewReplacer("|", `\|`, "<", `\<`)

// TestReadme: the table of the chart's README is made of values.yaml.
func TestReadme(t *testing.T) {
	var table strings.Builder
	table.WriteString("| value | default | description |\n|---|---|---|\n")
	for _, v := range values(t) {
		fmt.Fprintf(&table, "| `%s` | `%s` | %s |\n", v.path, v.text, inCell.Replace(v.description))
	}
	const file, command = chart + "/README.md", "go test ./deployments/helm -update"
	if *update {
		if err := page.Insert(file, command, table.String()); err != nil {
			t.Fatal(err)
		}
	}
	copied := filepath.Join(t.TempDir(), "README.md")
	if err := os.WriteFile(copied, []byte(read(t, file)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := page.Insert(copied, command, table.String()); err != nil {
		t.Fatal(err)
	}
	compare(t, file, read(t, copied))
}

// TestValuesAreDescribed: the schema knows each value, values.yaml each property of the schema, and each has a comment.
func TestValuesAreDescribed(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal([]byte(read(t, chart+"/values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	properties(schema, schema, "", known)
	inValues := map[string]bool{}
	for _, v := range values(t) {
		inValues[v.path] = true
		name := v.path[strings.LastIndex(v.path, ".")+1:]
		if v.description == "" && !slices.Contains(kubernetesFields, name) {
			t.Errorf("values.yaml says nothing of %s", v.path)
		}
		if !known[v.path] {
			t.Errorf("values.schema.json lacks %s", v.path)
		}
	}
	unset := map[string]string{"enabled": "for parent charts", "controller.sweep": "of an earlier release"}
	for _, path := range slices.Sorted(maps.Keys(known)) {
		leaf := !slices.ContainsFunc(slices.Collect(maps.Keys(inValues)), func(v string) bool {
			return v == path || strings.HasPrefix(v, path+".") || strings.HasPrefix(path, v+".")
		})
		if leaf && unset[path] == "" {
			t.Errorf("values.yaml lacks %s", path)
		}
	}
}

// TestSchemaDescriptions: the schema, which editors show, describes each value as values.yaml does, and says its type.
func TestSchemaDescriptions(t *testing.T) {
	const file = chart + "/values.schema.json"
	var document yamlv3.Node
	if err := yamlv3.Unmarshal([]byte(read(t, file)), &document); err != nil { // JSON is YAML, and has lines so
		t.Fatal(err)
	}
	lines := strings.SplitAfter(read(t, file), "\n")
	all := values(t)
	slices.SortFunc(all, func(a, b value) int { // from the end, so that positions stay
		return cmp.Compare(position(document.Content[0], b.path), position(document.Content[0], a.path))
	})
	for _, v := range all {
		schema := at(document.Content[0], v.path)
		if schema == nil || schema.Kind != yamlv3.MappingNode {
			continue // TestValuesAreDescribed
		}
		keys := map[string]*yamlv3.Node{}
		for i := 0; i < len(schema.Content); i += 2 {
			keys[schema.Content[i].Value] = schema.Content[i+1]
		}
		if !slices.ContainsFunc([]string{"type", "$ref", "allOf", "anyOf", "oneOf", "enum", "const", "if"},
			func(key string) bool { return keys[key] != nil }) {
			t.Errorf("the schema has no type of %s", v.path)
		}
		if v.description == "" {
			continue
		}
		if has := keys["description"]; has != nil {
			line := &lines[has.Line-1]
			begin := bytesOf(*line, has.Column-1)
			*line = (*line)[:begin] + quoted(v.description) + strings.TrimPrefix((*line)[begin:], quoted(has.Value))
			continue
		}
		line := &lines[schema.Line-1]
		brace := bytesOf(*line, schema.Column)
		before, after := "", " "
		if (*line)[brace:] == "\n" {
			before = "\n" + strings.Repeat(" ", len(*line)-len(strings.TrimLeft(*line, " "))+2)
			after = ""
		}
		*line = (*line)[:brace] + before + `"description": ` + quoted(v.description) + "," + after + (*line)[brace:]
	}
	compare(t, file, strings.Join(lines, ""))
}

// bytesOf returns where so many characters of the line end: bytes.
func bytesOf(line string, characters int) int { return len(string([]rune(line)[:characters])) }

// at returns the schema of a value, or nil.
func at(schema *yamlv3.Node, path string) *yamlv3.Node {
	for _, name := range strings.Split(path, ".") {
		for _, key := range []string{"properties", name} {
			var next *yamlv3.Node
			for i := 0; schema != nil && i+1 < len(schema.Content); i += 2 {
				if schema.Content[i].Value == key {
					next = schema.Content[i+1]
				}
			}
			schema = next
		}
	}
	return schema
}

// position is where the schema of a value begins.
func position(schema *yamlv3.Node, path string) int {
	if of := at(schema, path); of != nil {
		return of.Line<<16 + of.Column
	}
	return 0
}

// quoted returns the text as JSON, with "<" as it is.
func quoted(text string) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string can be encoded
	return strings.TrimSuffix(b.String(), "\n")
}

// properties adds the paths of all properties of an object in the schema.
func properties(root, object map[string]any, prefix string, into map[string]bool) {
	if reference, ok := object["$ref"].(string); ok {
		name := strings.TrimPrefix(reference, "#/$defs/")
		object, _ = root["$defs"].(map[string]any)[name].(map[string]any)
	}
	fields, _ := object["properties"].(map[string]any)
	for name, field := range fields {
		into[prefix+name] = true
		if object, ok := field.(map[string]any); ok {
			properties(root, object, prefix+name+".", into)
		}
	}
}
