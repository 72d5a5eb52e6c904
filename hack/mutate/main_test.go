// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestMutations(t *testing.T) {
	all, err := mutationsOf("a.go", []byte(`package a

func f(a, b int, done bool) (int, error) {
	if a < b && !done {
		a = g(true)
	}
	log.Info("begun")
	g(false)
	return a, err
}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		got = append(got, fmt.Sprintf("%d %s", m.line, m))
	}
	slices.Sort(got)
	want := []string{"4 `&&` → `\\|\\|`", "4 `<` → `<=`", "4 `a < b && !done` → `!(a < b && !done)`",
		"5 `true` → `false`", "8 `false` → `true`", "8 `g(false)` → `nothing`", "9 `err` → `nil`"}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
