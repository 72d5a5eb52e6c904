// SPDX-License-Identifier: Apache-2.0

package hwprofile

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A decoder decodes YAML strictly and continues after a mistake, so that it reports all of them at once.
type decoder struct {
	problems []error
	tables   map[string]partitionTable // those read so far: a profile names each of its tables for several calls
}

// A custom value decodes itself from a YAML node.
type custom interface {
	decode(d *decoder, path string, n *yaml.Node)
}

// A named value is an integer with constants in NVML. It is written as the constant, or as a number if it is newer than
// this program.
type named interface{ names() map[string]int }

// problem reports a mistake: where it is, what it is, what is accepted.
func (d *decoder) problem(path string, n *yaml.Node, format string, args ...any) {
	d.problems = append(d.problems, fmt.Errorf("line %d: %s: %s", n.Line, path, fmt.Sprintf(format, args...)))
}

// err returns all mistakes so far, nil if there are none.
func (d *decoder) err() error { return errors.Join(d.problems...) }

// value decodes the node into target. Fields that the node does not have stay, so that defaults and differences can be
// decoded into the same value.
func (d *decoder) value(path string, n *yaml.Node, target reflect.Value) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if c, ok := target.Addr().Interface().(custom); ok {
		c.decode(d, path, n)
		return
	}
	if e, ok := target.Interface().(named); ok {
		d.name(path, n, target, e.names())
		return
	}
	switch target.Kind() {
	case reflect.Struct:
		d.fields(path, n, target)
	case reflect.Slice:
		d.list(path, n, target)
	case reflect.Map:
		d.table(path, n, target)
	default:
		d.scalar(path, n, target)
	}
}

func (d *decoder) name(path string, n *yaml.Node, target reflect.Value, names map[string]int) {
	number, ok := names[n.Value]
	if plain, err := strconv.Atoi(n.Value); err == nil { // a constant that this program does not know
		number, ok = plain, true
	}
	if n.Kind != yaml.ScalarNode || !ok {
		d.problem(path, n, "%s is not one of %s", show(n), strings.Join(byNumber(names), ", "))
		return
	}
	target.SetInt(int64(number))
}

func (d *decoder) fields(path string, n *yaml.Node, target reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.problem(path, n, "%s: want a map with the fields %s", show(n), strings.Join(fieldNames(target.Type()), ", "))
		return
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		if seen[key.Value] {
			d.problem(join(path, key.Value), key, "given twice")
			continue
		}
		seen[key.Value] = true
		field, ok := fieldNamed(target, key.Value)
		if !ok {
			d.problem(join(path, key.Value), key, "unknown field; accepted here: %s",
				strings.Join(fieldNames(target.Type()), ", "))
			continue
		}
		d.value(join(path, key.Value), n.Content[i+1], field)
	}
}

func (d *decoder) list(path string, n *yaml.Node, target reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.problem(path, n, "%s: want a list", show(n))
		return
	}
	out := reflect.MakeSlice(target.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		d.value(fmt.Sprintf("%s[%d]", path, i), item, out.Index(i))
	}
	target.Set(out)
}

func (d *decoder) table(path string, n *yaml.Node, target reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.problem(path, n, "%s: want a map", show(n))
		return
	}
	out := reflect.MakeMap(target.Type())
	for i := 0; i < len(n.Content); i += 2 {
		at := join(path, n.Content[i].Value)
		key := reflect.New(target.Type().Key()).Elem()
		d.value(at, n.Content[i], key)
		item := reflect.New(target.Type().Elem()).Elem()
		d.value(at, n.Content[i+1], item)
		if out.MapIndex(key).IsValid() {
			d.problem(at, n.Content[i], "given twice")
		}
		out.SetMapIndex(key, item)
	}
	target.Set(out)
}

func (d *decoder) scalar(path string, n *yaml.Node, target reflect.Value) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		d.problem(path, n, "%s: want %s", show(n), kindName(target.Kind()))
		return
	}
	var err error
	switch target.Kind() {
	case reflect.String:
		target.SetString(n.Value)
	case reflect.Int:
		var v int64
		if v, err = strconv.ParseInt(n.Value, 0, 64); err == nil {
			target.SetInt(v)
		}
	case reflect.Uint32, reflect.Uint64:
		var v uint64
		if v, err = strconv.ParseUint(n.Value, 0, target.Type().Bits()); err == nil {
			target.SetUint(v)
		}
	default:
		panic("no way to decode a " + target.Type().String())
	}
	if err != nil {
		d.problem(path, n, "%s: want %s", show(n), kindName(target.Kind()))
	}
}

func kindName(k reflect.Kind) string {
	switch k {
	case reflect.Int:
		return "a whole number"
	case reflect.Uint32:
		return "a whole number from 0 to 4294967295"
	case reflect.Uint64:
		return "a whole number of at least 0"
	}
	return "a string"
}

// show formats the node as it looks in the file.
func show(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	return strconv.Quote(n.Value)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func fieldNamed(v reflect.Value, name string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if tag := v.Type().Field(i).Tag.Get("yaml"); tag != "" && tag == name {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func fieldNames(t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		if tag := t.Field(i).Tag.Get("yaml"); tag != "" {
			out = append(out, tag)
		}
	}
	slices.Sort(out)
	return out
}

func byNumber(names map[string]int) []string {
	return slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		if names[a] != names[b] {
			return names[a] - names[b]
		}
		return strings.Compare(a, b)
	})
}
