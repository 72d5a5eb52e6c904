// SPDX-License-Identifier: Apache-2.0

package selectors

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// An expression is cut by the parser of CEL: not in strings, lists, alternatives or macros.
func TestCut(t *testing.T) {
	for _, row := range []struct {
		expression string
		want       []string
	}{
		{"true", []string{"true"}},
		{"a && b&&c", []string{"a", "b", "c"}},
		{"a && (b && c)", []string{"a", "b", "c"}},
		{"a && (b || c && d)", []string{"a", "(b || c && d)"}},
		{"a || b && c", []string{"(a || b && c)"}},
		{"a ? b && c : d", []string{"(a ? (b && c) : d)"}},
		{"!(a && b)", []string{"!(a && b)"}},
		{"a == 'x && y' && b", []string{`a == "x && y"`, "b"}},
		{"[a, b].all(x, x && y) && c", []string{"[a, b].all(x, x && y)", "c"}},
		{"has(a.b) && a.b", []string{"has(a.b)", "a.b"}},
		{"'x' in a['d'] && a['d'].x > 1", []string{`"x" in a["d"]`, `a["d"].x > 1`}},
	} {
		all, err := Cut(row.expression)
		var got []string
		for _, c := range all {
			got = append(got, c.Text)
		}
		if err != nil || !slices.Equal(got, row.want) {
			t.Errorf("%s: got %q, %v, want %q", row.expression, got, err, row.want)
		}
	}
	if _, err := Cut("a &&"); err == nil {
		t.Error("half an expression is no error")
	}
}

// The limit of a clause, and the clause with another value.
func TestLimitOf(t *testing.T) {
	const memory, compute = "device.capacity['d'].memory", "device.attributes['d'].compute"
	quantity := func(text string) Number { return Number{quantity: ptr.To(resource.MustParse(text))} }
	for _, row := range []struct {
		clause string
		to     Number
		want   string // empty: it is no limit
	}{
		{memory + ".compareTo(quantity('40Gi')) >= 0", quantity("38Gi"),
			`device.capacity["d"].memory.compareTo(quantity("38Gi")) >= 0`},
		{memory + ".compareTo(quantity('40Gi')) > 0", quantity("40Gi"),
			`device.capacity["d"].memory.compareTo(quantity("40Gi")) >= 0`},
		{memory + ".compareTo(quantity('40Gi')) < 0", quantity("80Gi"),
			`device.capacity["d"].memory.compareTo(quantity("80Gi")) <= 0`},
		{memory + ".isGreaterThan(quantity('40Gi'))", quantity("38Gi"),
			`device.capacity["d"].memory.compareTo(quantity("38Gi")) >= 0`},
		{"device.capacity['d']['memory'].isLessThan(quantity('40Gi'))", quantity("48Gi"),
			`device.capacity["d"]["memory"].compareTo(quantity("48Gi")) <= 0`},
		{compute + " >= 9", Number{integer: 7}, `device.attributes["d"].compute >= 7`},
		{"9 <= " + compute, Number{}, ""},
		{memory + ".compareTo(quantity('40Gi')) >= 1", Number{}, ""},
		{memory + ".compareTo(quantity('40Gi')) == 0", Number{}, ""},
		{"device.attributes['d'].name == 'x'", Number{}, ""},
		{"!(" + compute + " >= 9)", Number{}, ""},
	} {
		all, err := Cut(row.clause)
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %v, %v", row.clause, all, err)
		}
		got := ""
		if all[0].Limit != nil {
			got = all[0].Limit.With(row.to)
		}
		if got != row.want {
			t.Errorf("%s: got %s, want %s", row.clause, got, row.want)
		}
	}
}
