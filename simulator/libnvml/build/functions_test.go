// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, row := range []struct{ name, header, want string }{
		{"no parameters", "nvmlReturn_t DECLDIR nvmlShutdown(void);", "nvmlShutdown()"},
		{"several lines", "nvmlReturn_t DECLDIR nvmlA(nvmlDevice_t d,\n    unsigned int *n);", "nvmlA(d, *n)"},
		{"in a comment", "/* nvmlReturn_t DECLDIR nvmlOld(void); */ nvmlReturn_t DECLDIR nvmlNew(void);",
			"nvmlNew()"},
		{"an old name", "#define nvmlOld nvmlNew\n#define nvmlOldType_t nvmlType_t\n" +
			"nvmlReturn_t DECLDIR nvmlNew(int n);", "nvmlNew(n) nvmlOld(n)"},
		{"an old name that is declared", "#define nvmlA nvmlA_v2\nnvmlReturn_t DECLDIR nvmlA(int n);\n" +
			"nvmlReturn_t DECLDIR nvmlA_v2(long n);", "nvmlA(n) nvmlA_v2(n)"},
		{"none", "int x;", "cannot read every declaration"},
		{"one that is not understood", "nvmlReturn_t DECLDIR nvmlA(void);\nint DECLDIR nvmlB(void);",
			"cannot read every declaration"},
	} {
		t.Run(row.name, func(t *testing.T) {
			functions, err := parse(row.header)
			got := describe(functions)
			if err != nil {
				got = err.Error()
			}
			if got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func describe(functions []function) string {
	var out []string
	for _, f := range functions {
		var names []string
		for _, p := range f.parameters {
			name := p.name
			if p.pointer {
				name = "*" + name
			}
			names = append(names, name)
		}
		out = append(out, f.name+"("+strings.Join(names, ", ")+")")
	}
	return strings.Join(out, " ")
}

// The header that go-nvml has is understood.
func TestHeader(t *testing.T) {
	header, err := list("-m", "{{.Dir}}/pkg/nvml/nvml.h", "github.com/NVIDIA/go-nvml")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(header)
	if err != nil {
		t.Fatal(err)
	}
	functions, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range functions {
		if got[f.name] {
			t.Errorf("%s is there twice", f.name)
		}
		got[f.name] = true
		for _, p := range f.parameters {
			if p.name == "" {
				t.Errorf("%s: parameter %q has no name", f.name, p.declaration)
			}
		}
	}
	for _, name := range []string{"nvmlInit", "nvmlInit_v2", "nvmlDeviceGetPciInfo_v3", "nvmlGetBlacklistDeviceCount"} {
		if !got[name] {
			t.Errorf("%s is missing", name)
		}
	}
}
