// SPDX-License-Identifier: Apache-2.0

package hwprofile

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Format encodes a profile; ParseProfile returns the same machine from it. Values that all GPUs share become defaults.
// The error says why ParseProfile would refuse the profile.
func Format(p Profile) ([]byte, error) {
	top := mapping()
	for _, field := range []struct {
		name, text string
	}{{"name", p.Name}, {"description", p.Description}, {"kernel", p.Kernel}} {
		if field.text != "" {
			add(top, field.name, textNode(field.text))
		}
	}
	add(top, "system", encode(reflect.ValueOf(p.System)))
	var gpus []*yaml.Node
	for _, g := range p.GPUs {
		gpus = append(gpus, encode(reflect.ValueOf(g)))
	}
	if defaults := mapping(); len(gpus) > 1 {
		share(defaults, gpus)
		add(top, "defaults", defaults)
	}
	add(top, "gpus", &yaml.Node{Kind: yaml.SequenceNode, Content: gpus})
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(top); err != nil {
		return nil, fmt.Errorf("write profile: %w", err)
	}
	if _, err := ParseProfile(out.Bytes()); err != nil {
		return nil, fmt.Errorf("write profile: %w", err)
	}
	return out.Bytes(), nil
}

// share moves the fields that are equal in all mappings to defaults. It descends into mappings in block style.
func share(defaults *yaml.Node, all []*yaml.Node) {
	for _, key := range keys(all[0]) {
		var items []*yaml.Node
		for _, m := range all {
			if item := lookUp(m, key); item != nil {
				items = append(items, item)
			}
		}
		switch {
		case len(items) < len(all):
		case !slices.ContainsFunc(items, func(n *yaml.Node) bool { return !equal(n, items[0]) }):
			add(defaults, key, items[0])
			for _, m := range all {
				remove(m, key)
			}
		case key == "calls" || key == "pci": // a GPU overrides single fields of these, and whole values of others
			common := mapping()
			common.Style = items[0].Style
			share(common, items)
			if len(common.Content) > 0 {
				add(defaults, key, common)
			}
			for _, m := range all {
				if len(lookUp(m, key).Content) == 0 {
					remove(m, key)
				}
			}
		}
	}
}

func equal(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.Value == b.Value && slices.EqualFunc(a.Content, b.Content, equal)
}

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode} }

func add(to *yaml.Node, key string, item *yaml.Node) {
	to.Content = append(to.Content, textNode(key), item)
}

func keys(m *yaml.Node) []string {
	var out []string
	for i := 0; i < len(m.Content); i += 2 {
		out = append(out, m.Content[i].Value)
	}
	return out
}

func lookUp(m *yaml.Node, key string) *yaml.Node {
	if i := slices.Index(keys(m), key); i >= 0 {
		return m.Content[2*i+1]
	}
	return nil
}

func remove(m *yaml.Node, key string) {
	i := slices.Index(keys(m), key)
	m.Content = slices.Delete(m.Content, 2*i, 2*i+2)
}

func textNode(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}

// written is a value that encodes itself, the counterpart of custom. nil is omitted.
type written interface{ encode() *yaml.Node }

// encode encodes a value as the decoder reads it. Short maps and lists are on one line.
func encode(v reflect.Value) *yaml.Node {
	if w, ok := v.Interface().(written); ok {
		return w.encode()
	}
	if e, ok := v.Interface().(named); ok {
		return nameNode(int(v.Int()), e.names())
	}
	switch v.Kind() {
	case reflect.Struct:
		return encodeFields(v)
	case reflect.Slice:
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			list.Content = append(list.Content, encode(v.Index(i)))
		}
		return oneLine(list)
	case reflect.Map:
		return encodeTable(v)
	case reflect.String:
		return textNode(v.String())
	case reflect.Int:
		return numberNode(strconv.FormatInt(v.Int(), 10))
	case reflect.Uint32, reflect.Uint64:
		return numberNode(strconv.FormatUint(v.Uint(), 10))
	}
	panic("no way to encode a " + v.Type().String())
}

func encodeFields(v reflect.Value) *yaml.Node {
	m := mapping()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag.Get("yaml")
		if tag == "" || v.Field(i).Kind() == reflect.Slice && v.Field(i).Len() == 0 {
			continue
		}
		if item := encode(v.Field(i)); item != nil {
			add(m, tag, item)
		}
	}
	return oneLine(m)
}

func encodeTable(v reflect.Value) *yaml.Node {
	m := mapping()
	entries := v.MapKeys()
	slices.SortFunc(entries, func(a, b reflect.Value) int {
		if x, ok := a.Interface().(Address); ok {
			return x.Compare(b.Interface().(Address)) //nolint:forcetypeassert // all keys have one type
		}
		return int(a.Int() - b.Int())
	})
	for _, key := range entries {
		m.Content = append(m.Content, encode(key), encode(v.MapIndex(key)))
	}
	return oneLine(m)
}

func numberNode(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: text}
}

// nameNode is a constant's name, or its number if it has no name.
func nameNode(number int, names map[string]int) *yaml.Node {
	for _, name := range byNumber(names) {
		if names[name] == number {
			return textNode(name)
		}
	}
	return numberNode(strconv.Itoa(number))
}

// longest is the maximum number of words on one line, including keys.
const longest = 24

// oneLine sets the style of a node by its size.
func oneLine(n *yaml.Node) *yaml.Node {
	if words(n) <= longest {
		n.Style = yaml.FlowStyle
	}
	return n
}

func words(n *yaml.Node) int {
	count := 0
	if n.Kind == yaml.ScalarNode {
		count = 1
	}
	for _, c := range n.Content {
		count += words(c)
	}
	return count
}

// encode writes the model in hexadecimal, as people do.
func (p PCI) encode() *yaml.Node {
	m := encodeFields(reflect.ValueOf(p))
	lookUp(m, "deviceId").Value = fmt.Sprintf("%#x", p.DeviceID)
	lookUp(m, "subsystemId").Value = fmt.Sprintf("%#x", p.Subsystem)
	return m
}

func (a Address) encode() *yaml.Node { return textNode(a.String()) }

func (a Answer[T]) encode() *yaml.Node {
	if !a.given {
		return nil
	}
	if a.err != "" {
		return errorNode(a.err)
	}
	return encode(reflect.ValueOf(a.value))
}

func errorNode(e Error) *yaml.Node {
	m := mapping()
	add(m, "error", textNode(string(e)))
	return oneLine(m)
}

func (c Calls) encode() *yaml.Node {
	m := mapping()
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		if tag := v.Type().Field(i).Tag.Get("yaml"); tag != "" {
			if item := encode(v.Field(i)); item != nil {
				add(m, tag, item)
			}
		}
	}
	for _, call := range slices.Sorted(maps.Keys(c.errors)) {
		add(m, call, errorNode(c.errors[call]))
	}
	if len(m.Content) == 0 {
		return nil
	}
	return m
}

// encode writes consecutive links with equal answers as a range.
func (l Links[T]) encode() *yaml.Node {
	m := mapping()
	links := slices.Sorted(maps.Keys(l))
	for i := 0; i < len(links); {
		last := i
		for last+1 < len(links) && links[last+1] == links[last]+1 && reflect.DeepEqual(l[links[last+1]], l[links[i]]) {
			last++
		}
		key := strconv.Itoa(links[i])
		if last > i {
			key += "-" + strconv.Itoa(links[last])
		}
		m.Content = append(m.Content, textNode(key), encode(reflect.ValueOf(l[links[i]])))
		i = last + 1
	}
	return oneLine(m)
}

func (p GPUInstanceProfiles) encode() *yaml.Node {
	return tableNode(p, func(t partitionTable) GPUInstanceProfiles { return t.Profiles })
}

func (p GPUInstancePlacements) encode() *yaml.Node {
	return tableNode(p, func(t partitionTable) GPUInstancePlacements { return t.Placements })
}

func (p ComputeInstanceProfiles) encode() *yaml.Node {
	return tableNode(p, func(t partitionTable) ComputeInstanceProfiles { return t.Compute })
}

// tableNode is the name of the built-in table with the same answers, otherwise the answers by profile, each on a line.
func tableNode[M ~map[int]V, V any](m M, pick func(partitionTable) M) *yaml.Node {
	for _, name := range Tables() {
		if t, err := readTable(name); err == nil && reflect.DeepEqual(pick(t), m) {
			return textNode(name)
		}
	}
	out := mapping()
	for _, number := range slices.Sorted(maps.Keys(m)) {
		item := encode(reflect.ValueOf(m[number]))
		item.Style = yaml.FlowStyle
		out.Content = append(out.Content, numberNode(strconv.Itoa(number)), item)
	}
	return out
}

// ComputeProfilesOf returns the compute instance profiles of a GPU with those GPU instance profiles, without asking a
// GPU instance. It uses the built-in table with the same profiles. Otherwise it derives for each the whole instance and
// its parts in NVML's sizes, with a proportional share of the multiprocessors.
func ComputeProfilesOf(profiles GPUInstanceProfiles) ComputeInstanceProfiles {
	for _, name := range Tables() {
		if t, err := readTable(name); err == nil && reflect.DeepEqual(GPUInstanceProfiles(t.Profiles), profiles) {
			return t.Compute
		}
	}
	out := ComputeInstanceProfiles{}
	for number, p := range profiles {
		out[number] = map[int]ComputeInstanceProfile{}
		for profile, size := range computeSizes {
			if size <= p.SliceCount {
				out[number][profile] = ComputeInstanceProfile{ID: profile, SliceCount: size,
					InstanceCount:       p.SliceCount / size,
					MultiprocessorCount: p.MultiprocessorCount * size / p.SliceCount}
			}
		}
	}
	return out
}

// computeSizes are the slices of compute instances by NVML's number of the profile (NVML_COMPUTE_INSTANCE_PROFILE_*).
var computeSizes = map[int]int{0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6}
