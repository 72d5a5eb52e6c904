// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// A selector selects the GPUs that meet all its criteria. Without criteria it selects every GPU.
type selector []criterion

// A criterion is met by a GPU with any of the values.
type criterion struct {
	attribute string // a key of attributes
	values    []value
}

// A value is a pattern, in which "*" matches any text, and its position in the configuration.
type value struct {
	line    int
	path    string
	pattern string
}

// attributes are the attributes that select GPUs.
var attributes = map[string]func(gpu.Device) string{
	"product":      func(d gpu.Device) string { return d.Product.Name },
	"uuid":         func(d gpu.Device) string { return string(d.UUID) },
	"index":        func(d gpu.Device) string { return strconv.Itoa(d.Index) },
	"architecture": func(d gpu.Device) string { return d.Product.Architecture },
}

func (s selector) matches(d gpu.Device) bool {
	return !slices.ContainsFunc(s, func(c criterion) bool { return !c.matches(d) })
}

func (c criterion) matches(d gpu.Device) bool {
	return slices.ContainsFunc(c.values, func(v value) bool { return glob(v.pattern, attributes[c.attribute](d)) })
}

// covers reports whether s certainly selects every GPU that other selects.
func (s selector) covers(other selector) bool {
	return !slices.ContainsFunc(s, func(c criterion) bool { return !slices.ContainsFunc(other, c.covers) })
}

func (c criterion) covers(other criterion) bool {
	return c.attribute == other.attribute && !slices.ContainsFunc(other.values, func(v value) bool {
		// A "*" of the other pattern is compared as a character, so only a "*" covers it.
		return !slices.ContainsFunc(c.values, func(w value) bool { return glob(w.pattern, v.pattern) })
	})
}

// absent reports the values that no GPU has.
func (s selector) absent(devices []gpu.Device) []string {
	var out []string
	for _, c := range s {
		for _, v := range c.values {
			if one := (criterion{c.attribute, []value{v}}); !slices.ContainsFunc(devices, one.matches) {
				out = append(out, fmt.Sprintf("line %d: %s: no GPU of this node has the %s %s", v.line, v.path,
					c.attribute, v.pattern))
			}
		}
	}
	return out
}

// glob reports whether the text matches the pattern.
func glob(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, parts[0])
	for _, part := range parts[1:last] {
		if ok {
			_, text, ok = strings.Cut(text, part)
		}
	}
	return ok && strings.HasSuffix(text, parts[last])
}
